"""The HTML page about runs: its data, its figures, and the server that keeps it up to date."""
