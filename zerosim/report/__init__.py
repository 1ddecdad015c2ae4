"""The output of a run: terminal, JSON document, page, trace."""
