"""Symbols: the sums that a collective computes, and their order."""
