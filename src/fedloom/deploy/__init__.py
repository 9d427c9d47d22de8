"""The same recipe on real machines: a Flower app whose nodes are the lanes of the one round loop.

Nothing of a method is written here. The server runs `engine/rounds.py` as it is, with nodes in place of lanes; a node
runs what a lane runs. `wire.py` says what travels, `site.py` is a node, `nodes.py` the server's view of all of them.
"""
