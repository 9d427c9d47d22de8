"""One file a group of commands. What needs torch is imported inside the functions."""
