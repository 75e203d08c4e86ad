"""Titles of sessions, made by agents that can make them."""
