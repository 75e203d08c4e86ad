"""Commands that run under a keeper process: starting, reading, killing."""
