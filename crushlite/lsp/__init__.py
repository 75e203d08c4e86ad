"""Language servers: what is wrong in a file after an edit, and where names are defined and used.

servers      which servers there are: configured, or found on PATH
server       one of them while it runs: what it is told, and what it says
diagnostics  what servers find wrong, bounded, and in words
positions    places in a text, and changes of it, as the protocol has them
tools        what the agent can ask
part, wing   how it plugs into the daemon
"""
