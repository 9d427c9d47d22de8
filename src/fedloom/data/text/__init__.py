"""Texts become tokens."""
