"""How quantities are measured: models are evaluated on workers, and results are stored as small tables in the run folder."""
