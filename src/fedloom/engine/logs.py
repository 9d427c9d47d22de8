"""rounds.jsonl and clients.jsonl with a running checksum of what they say, which every checkpoint keeps.

A line is appended before the checkpoint of its round is written. So whatever a kill leaves behind, the lines up to a
checkpoint's round are those that the checkpoint saw; where they are not, somebody or some disk has changed them. Lines after
the newest checkpoint, half a line among them, are what a kill may leave: those rounds are made again.

A checkpoint's own time is written into the last line after the checkpoint, and is no part of the checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.engine.files import append_line, keep_lines, read_lines, settle

Line = dict[str, Any]
START = ""


def sealed(seal: str, line: Mapping[str, Any]) -> str:
    """The checksum of a log with one line more."""
    phases = {name: spent for name, spent in (line.get("phase_seconds") or {}).items() if name != "checkpoint"}
    content = {name: value for name, value in line.items() if name != "phase_seconds"}
    text = json.dumps([seal, content, phases])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass
class RunLog:
    """What is written down of a run's rounds, from the first on without a gap, and of its clients."""

    rounds_path: Path
    clients_path: Path
    rounds: list[Line]
    clients: dict[int, Line]  # by round
    end: str = ""  # why there are no more rounds

    @classmethod
    def read(cls, rounds: Path, clients: Path) -> RunLog:
        each = {line["round"]: line for line in read_lines(clients) if isinstance(line.get("round"), int)}
        whole: list[Line] = []
        for line in read_lines(rounds):
            if line.get("round") != len(whole) + 1:
                break
            if "client_accuracy" in line and line["round"] not in each:
                return cls(rounds, clients, whole, each, f"{clients} lacks round {line['round']}")
            whole.append(line)
        return cls(rounds, clients, whole, each, f"{rounds} ends with round {len(whole)}")

    def __post_init__(self) -> None:
        self._seals = (_chain(self.rounds), _chain(self._ordered()))

    def add_clients(self, line: Line) -> None:
        append_line(self.clients_path, line)
        self._seals = (self._seals[0], sealed(self._seals[1], line))

    def add_round(self, line: Line) -> None:
        append_line(self.rounds_path, line)
        self._seals = (sealed(self._seals[0], line), self._seals[1])

    def cut(self, round: int) -> None:
        """Back to the lines up to a round, in the files too."""
        self.rounds = self.rounds[:round]
        self.clients = {number: line for number, line in self.clients.items() if number <= round}
        keep_lines(self.rounds_path, self.rounds)
        keep_lines(self.clients_path, self._ordered())
        self._seals = (_chain(self.rounds), _chain(self._ordered()))

    def seal(self) -> str:
        """The checksum of all that is written so far; it is on the disk when this returns."""
        settle(self.rounds_path)
        settle(self.clients_path)
        return ":".join(self._seals)

    def flaw(self, round: int, seal: str | None) -> str | None:
        """What keeps the lines up to a round from being those of this checksum; None if they are."""
        if len(self.rounds) < round:
            return self.end
        if seal is None:  # a checkpoint of a version that kept none
            return None
        rounds, _, clients = seal.partition(":")
        for path, lines, expected in (
            (self.rounds_path, self.rounds[:round], rounds),
            (self.clients_path, [line for line in self._ordered() if line["round"] <= round], clients),
        ):
            if _chain(lines) != expected:
                return f"{path} was changed after round {round}: a line was edited, added or lost"
        return None

    def _ordered(self) -> list[Line]:
        return [self.clients[number] for number in sorted(self.clients)]


def _chain(lines: Iterable[Line]) -> str:
    seal = START
    for line in lines:
        seal = sealed(seal, line)
    return seal
