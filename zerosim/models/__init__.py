"""What is trained: units of layers, and functions that build them."""
