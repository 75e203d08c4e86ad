"""The tools of the coder: one small class each, with one interface (base.py)."""
