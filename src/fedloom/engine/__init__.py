"""The engine: one local loop, one round loop, and where they run."""
