"""Atomic and checksummed files, JSON lines, npz archives, and importing the user's code."""
