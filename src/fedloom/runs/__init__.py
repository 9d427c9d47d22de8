"""One run: its folder, its way from recipe to summary, and its results read back."""
