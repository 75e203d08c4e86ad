"""Turns below that of a run: sub-agents (`Turn.delegate`) and summaries (`Turn.summarize`)."""
