"""Checks of a user's parts: what each kind of part promises, and the first call in which a stage differs."""
