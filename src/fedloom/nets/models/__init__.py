"""The networks, one a file; each registers itself."""
