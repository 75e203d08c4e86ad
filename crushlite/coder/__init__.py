"""The agent that works on a project through a model: its loop, providers and tools. A wing."""
