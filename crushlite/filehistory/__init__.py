"""Versions of the files that sessions changed, and which files they read."""
