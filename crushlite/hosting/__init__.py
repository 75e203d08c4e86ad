"""Workspaces and their runs: performs what runs.py and claims.py decide."""
