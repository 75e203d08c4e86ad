"""The files of a project, without being led astray by links.

    paths      one file: where a path leads, reading it, replacing it as one step
    states     a file at one moment, and putting it back into that state
    walk       everything below a folder: the program behind ls, glob and grep
    snapshot   all text files of a project at one moment, and what has changed since

Blocking: call it in a thread. Knows nothing of sessions, runs or the store.
"""
