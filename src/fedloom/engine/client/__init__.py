"""What happens on a client: the local loop and all that it needs."""
