"""Which run changed which file, commands included, and putting it back. A wing."""
