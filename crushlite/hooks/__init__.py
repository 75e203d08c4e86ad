"""Hooks: commands of the user that are asked, or told, when an agent does something.

    definitions  the `hooks` section, in the forms of Crush and of Claude Code      (pure)
    verdicts     what the exit code and the output of a hook mean                   (pure)
    running      one hook as a child process, bounded in time and output
    part         which hooks are run when, in one workspace
    wing         how it plugs into the daemon

A hook that must be asked before something is done, and cannot be run, counts as a no.
"""
