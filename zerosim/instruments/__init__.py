"""What observes a communicator or an allocator, and what measures or limits this process."""
