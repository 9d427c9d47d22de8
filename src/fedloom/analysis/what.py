"""The quantities that `fedloom analyze` measures, by name."""

WHAT = ("factors", "norms", "alignment", "drift", "collapse", "consistency", "refinement", "embedding", "cost")
