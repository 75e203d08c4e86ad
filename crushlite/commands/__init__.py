"""Commands under a keeper: started, read, killed with everything below them, kept as jobs."""
