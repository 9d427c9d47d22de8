"""The server: the round loop, aggregation, queries, callbacks."""
