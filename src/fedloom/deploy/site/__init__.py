"""A node: its own data, its own state on its own disk, and a worker's tasks when the server asks."""
