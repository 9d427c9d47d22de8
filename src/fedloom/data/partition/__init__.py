"""Partitioners: which client holds which images. One per file; `fedloom.data.split` imports them all."""
