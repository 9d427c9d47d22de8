"""Tables: a pandas frame becomes features or tokens, labels and groups."""
