"""Orders of addition, fixed point, precisions, digests."""
