"""What outlives a process: training states saved, and brought back on any number of ranks, by any stage."""
