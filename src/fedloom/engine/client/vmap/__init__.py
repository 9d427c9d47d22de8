"""Several clients of a tiny net in one computation, by torch.func.vmap."""
