"""What travels besides arrays: symbols, and shapes alone."""
