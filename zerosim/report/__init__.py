"""What a run shows and writes: terminal, JSON document, page, trace."""
