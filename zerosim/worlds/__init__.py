"""Worlds: what carries messages between ranks."""
