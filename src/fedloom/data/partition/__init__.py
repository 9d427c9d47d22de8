"""Partitioners: which client holds which samples. One per file; `fedloom.data.split` imports them all."""
