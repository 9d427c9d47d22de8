"""Choosing rates and hyper-parameters on validation data, with the same budget for every method."""
