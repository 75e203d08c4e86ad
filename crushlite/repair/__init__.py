"""Saving what a damaged database holds: the store refuses one, and names this if it is there."""
