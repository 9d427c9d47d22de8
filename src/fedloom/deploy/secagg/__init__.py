"""Secure aggregation: the server learns sums of uploads and nothing else."""
