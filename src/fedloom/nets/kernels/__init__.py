"""How convolutions are computed."""
