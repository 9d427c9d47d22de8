"""Questions that nobody waits for: each node is asked once, answers are collected when they come, and a node that
does not answer, or refuses, is asked again ever more rarely. A silent node so costs a message now and then, and no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from fedloom.deploy.post import Answers, Post, Silence
from fedloom.deploy.secure import Order

AGAIN, RAREST = 60.0, 960.0  # seconds until a node is asked again: twice as many each time, at most the second


@dataclass
class Asked:
    """What is known of a node that was asked."""

    number: str = ""  # of the message that is under way
    since: float = 0.0
    times: int = 0
    due: float = 0.0  # when it may be asked again


class Invitations:
    """Asks nodes a question of one kind without waiting; `question` makes it, new for every node and time."""

    def __init__(self, post: Post, kind: str, question: Callable[[int], Order], timeout: float) -> None:
        self.post, self.kind, self.question, self.timeout = post, kind, question, timeout
        self._asked: dict[int, Asked] = {}

    def ask(self, nodes: Collection[int]) -> None:
        """Ask those of them that are due."""
        now = time.monotonic()
        for node in nodes:
            asked = self._asked.setdefault(node, Asked())
            if asked.number or now < asked.due:
                continue
            number = self.post.send(node, self.question(node), self.timeout)
            asked.number, asked.since, asked.times = number or "", now, asked.times + 1
            if number is None:
                self._later(asked)

    def again(self, node: int) -> None:
        """Ask this one at the next occasion, whenever it was asked last."""
        asked = self._asked.setdefault(node, Asked())
        asked.times, asked.due = 0, 0.0

    def rest(self, node: int, seconds: float) -> None:
        """Do not ask this one for so long."""
        self._asked.setdefault(node, Asked()).due = time.monotonic() + seconds

    def collect(self) -> Answers:
        """What has come since the last time, in the order in which it came; also of whom nothing came in time."""
        waiting = {asked.number: node for node, asked in self._asked.items() if asked.number}
        found = self.post.answers(waiting, self.kind) if waiting else {}
        latest = time.monotonic() - self.timeout
        for node in waiting.values():
            if node not in found and self._asked[node].since < latest:
                found[node] = Silence(f"no answer within {self.timeout:g} s")
        for node in found:
            self._asked[node].number = ""
            self._later(self._asked[node])
        return found

    def keep(self, online: Collection[int]) -> None:
        """Forget the nodes that are gone."""
        self._asked = {node: asked for node, asked in self._asked.items() if node in online}

    def _later(self, asked: Asked) -> None:
        asked.due = time.monotonic() + min(AGAIN * 2.0 ** (asked.times - 1), RAREST)
