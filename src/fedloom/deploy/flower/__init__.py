"""The same recipe on real machines, over Flower."""
