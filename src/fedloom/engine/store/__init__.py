"""What outlives a process: checkpoints and clients' state."""
