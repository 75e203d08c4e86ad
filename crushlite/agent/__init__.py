"""Agents, which answer prompts. `base` is the whole contract; the other modules are users of it."""
