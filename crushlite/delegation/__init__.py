"""Sub-agents: `Turn.delegate` for every agent."""
