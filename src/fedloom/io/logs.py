"""rounds.jsonl and clients.jsonl with a running checksum, which every checkpoint stores.

A line is appended before the checkpoint of its round is written. So after a kill, the lines up to a checkpoint's round are
those that the checkpoint has seen; if not, the file was edited or damaged. Lines after the newest checkpoint, possibly an
incomplete one, are what a kill may leave: those rounds are repeated.

The time that a checkpoint takes is written into the last line after the checkpoint, and is not part of the checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.io.files import append_line, read_lines, replace_lines, sync

Line = dict[str, Any]
START = ""


def sealed(seal: str, line: Mapping[str, Any]) -> str:
    """The checksum of a log after one more line."""
    phases = {name: spent for name, spent in (line.get("phase_seconds") or {}).items() if name != "checkpoint"}
    content = {name: value for name, value in line.items() if name != "phase_seconds"}
    text = json.dumps([seal, content, phases])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass
class RunLog:
    """The logged rounds of a run, from the first on without a gap, and the lines of its clients."""

    rounds_path: Path
    clients_path: Path
    rounds: list[Line]
    clients: dict[int, Line]  # by round
    end: str = ""  # why the rounds end here, for error messages

    @classmethod
    def read(cls, rounds: Path, clients: Path) -> RunLog:
        by_round = {line["round"]: line for line in read_lines(clients) if isinstance(line.get("round"), int)}
        complete: list[Line] = []
        for line in read_lines(rounds):
            if line.get("round") != len(complete) + 1:
                break
            if any(name.startswith("client_") for name in line) and line["round"] not in by_round:
                return cls(rounds, clients, complete, by_round, f"{clients} lacks round {line['round']}")
            complete.append(line)
        return cls(rounds, clients, complete, by_round, f"{rounds} ends with round {len(complete)}")

    def __post_init__(self) -> None:
        self._seals = (_chain(self.rounds), _chain(self._ordered()))

    def add_clients(self, line: Line) -> None:
        append_line(self.clients_path, line)
        self._seals = (self._seals[0], sealed(self._seals[1], line))

    def add_round(self, line: Line) -> None:
        append_line(self.rounds_path, line)
        self._seals = (sealed(self._seals[0], line), self._seals[1])

    def cut(self, round: int) -> None:
        """Drop the lines after a round, also in the files."""
        self.rounds = self.rounds[:round]
        self.clients = {number: line for number, line in self.clients.items() if number <= round}
        replace_lines(self.rounds_path, self.rounds)
        replace_lines(self.clients_path, self._ordered())
        self._seals = (_chain(self.rounds), _chain(self._ordered()))

    def seal(self) -> str:
        """The checksum of all lines so far; they are on disk when this returns."""
        sync(self.rounds_path)
        sync(self.clients_path)
        return ":".join(self._seals)

    def flaw(self, round: int, seal: str | None) -> str | None:
        """Why the lines up to a round do not match this checksum; None if they do."""
        if len(self.rounds) < round:
            return self.end
        if seal is None:  # the checkpoint has no checksum of the log
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
