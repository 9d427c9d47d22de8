"""What happens inside a model and between clients: one quantity per file. `collect/` measures them in a run."""
