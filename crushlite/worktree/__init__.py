"""The files of a project, read and written without following links out of it.

    paths        one file: where a path leads, reading it, replacing it as one step
    walk         everything below a folder: the program behind ls, glob and grep
    rules        patterns of paths, and what .gitignore and .crushignore leave out
    names        what a path that does not exist may have been meant to be
    frontmatter  the fields at the head of a Markdown file
    threads      for all that blocks, which is all of this but frontmatter: bounded in time

Knows nothing of sessions, runs or the store.
"""
