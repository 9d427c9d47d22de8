"""The same recipe on real machines: a Flower app whose nodes take the place of workers in the one round loop.

No method is implemented here. The server runs `engine/server/round.py` with nodes as its back-end (`flower/nodes.py`), and a
node performs the same tasks as a worker (`site/worker.py`). `messages/` is what travels between them, `keys/` says which site a
node is, `secagg/` hides single uploads from the server.
"""
