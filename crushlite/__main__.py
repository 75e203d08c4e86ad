"""`python -m crushlite` is the `crushlite` command."""

from .cli import process

process()
