"""Instruments: they observe a communicator or an allocator, or measure and limit this process."""
