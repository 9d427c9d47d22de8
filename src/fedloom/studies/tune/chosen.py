"""What a tuning chose, as a file: `tuned.json` in its folder. `compare --tuned FOLDER` reads it.

read("runs/tune").methods[0].row     -> "dr + fd(beta=0.9) @ lr=0.31"
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedloom.errors import FedloomError
from fedloom.io.files import read_json, write_json
from fedloom.recipe.sentence import sentence

FILE = "tuned.json"


class ChosenSettings(BaseModel):
    """What tuning chose for one method."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: str  # as the user wrote it: dr + fd(beta=?)
    sum: str | None  # with the chosen hyper-parameters: dr + fd(beta=0.9); None: every trial diverged
    settings: Mapping[str, Any]  # chosen recipe fields: lr 0.31
    value: float | None  # of the metric on validation data
    trials: int
    stopped_early: int
    diverged: int
    rounds: int  # that all trials took together
    seconds: float
    warnings: tuple[str, ...] = ()
    tuned: Mapping[str, Any] = {}  # chosen values by setting: lr 0.31, fd.beta 0.9
    ranges: Mapping[str, str] = {}  # what was searched: lr log:0.003..3
    default_value: float | None = None  # of the setting without tuning
    selected_on: str = ""  # global model | clients' own models

    @property
    def row(self) -> str:
        """As `compare` takes methods."""
        settings = " ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.sum} @ {settings}" if settings else str(self.sum)


class Tuned(BaseModel):
    """What tuning chose for every method, and for which experiment."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    recipe: Mapping[str, Any]  # fields of the base recipe, without method and seed
    metric: str
    seeds: tuple[int, ...]  # that tuning saw
    methods: tuple[ChosenSettings, ...]
    budget: str = ""  # 16 trials for each method
    validation_samples: int = 0
    rungs: tuple[int, ...] = ()  # rounds after which trials were compared


def write(folder: Path, tuned: Tuned) -> None:
    write_json(folder / FILE, tuned.model_dump(mode="json"))


def read(folder: str | Path) -> Tuned:
    """Refused with a sentence if there is no finished tuning in the folder."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise FedloomError(f"tuned: {folder} has no {FILE}; give the folder of a finished fedloom tune")
    try:
        return Tuned.model_validate(read_json(path))
    except ValidationError as error:
        raise FedloomError(f"{path}: {sentence(error, Tuned)}") from None
