"""What wraps a communicator or an allocator to watch it."""
