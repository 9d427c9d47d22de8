"""Transforms of a batch before it enters the net."""
