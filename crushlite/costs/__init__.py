"""A person may raise the limit of cost of a run that has reached it."""
