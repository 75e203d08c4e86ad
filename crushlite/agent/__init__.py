"""The contract of agents, which answer prompts: see `base`."""
