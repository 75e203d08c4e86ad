"""Agents: what answers a prompt. `base` is the whole contract; the others are users of it."""
