"""Commands that run under a keeper process: starting, reading, killing, keeping them as jobs."""
