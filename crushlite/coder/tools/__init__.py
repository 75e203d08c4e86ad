"""The tools of the coder agent: one small class each, all behind one interface (base.py)."""
