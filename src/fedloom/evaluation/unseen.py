"""How many test samples of unseen classes a client is tested on by default."""

UNSEEN = 500
