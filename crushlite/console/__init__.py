"""The web page and how a browser gets in. A wing."""
