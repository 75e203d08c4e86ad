"""Commands in a workspace: those of agents, those that go on as jobs, those that a person types.

`commands/` is the library that runs them.
"""
