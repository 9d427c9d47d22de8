"""Where work runs: forked and spawned processes, a Ray cluster, and the buffers they share."""
