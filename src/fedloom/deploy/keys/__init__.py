"""Keys of sites, the roster of all of them, and how a node proves which site it is."""
