"""Messages between server and nodes: their format, and the one schema that parses them."""
