"""Editors: the Agent Client Protocol, spoken by `crushlite acp` on its standard streams.

    stdio      the standard streams of this process
    editor     one editor: its requests, and how each is answered
    project    one directory: its workspace in the daemon, and the events of it
    thread     one session that the editor shows: prompts, permissions, questions
    choices    whether tools ask, the model, the agent: what is chosen for one session
    commands   prompts with a name
    servers    tool servers that the editor names for a session
    view       what of a session the editor has seen, as updates
    words      the shapes of the protocol: blocks, tool calls, options, forms

A process per editor, which owns nothing: sessions, runs and files are the daemon's. It is a client
like the others and uses `client/` and `launch.py`; no daemon loads it.
"""
