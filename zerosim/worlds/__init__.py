"""Worlds: they run the ranks and carry their messages."""
