"""Symbols: what a collective computes, and in which order."""
