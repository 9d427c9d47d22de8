"""Nets from elsewhere, one source a file; each registers its prefix."""
