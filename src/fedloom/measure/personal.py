"""Personal fine-tuning: every client starts from its own model and trains it on its own data.

A client's own model is the served one with its personal regions over it and with what parts do to personalise it; for
most methods that is the served model itself. Accuracy is taken on the client's own test images before (`initial`) and
after every epoch, so one pass gives the whole curve of FedBABU's Table 5. Beside it stands what personalising forgets:
accuracy on test images of classes that the client has no training image of, before and after.

The loss is the method's own (objective and penalties, so distillation to the served model as well), its objective
alone, or cross-entropy; corrections of the federated steps have no say. Frozen regions are trained when the chosen
part holds them (so a FedBABU head is), except what a part fixed for good (an ETF head).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fedloom.engine import checkpoint
from fedloom.engine.files import read_json, write_json
from fedloom.engine.folder import RunFolder
from fedloom.engine.lanes import Job
from fedloom.engine.ledger import Ledger
from fedloom.engine.local import Which
from fedloom.engine.rounds import Federation
from fedloom.errors import FedloomError, shown
from fedloom.keys import numpy_generator
from fedloom.measure.accuracy import remember, spread
from fedloom.weights import Regions

Tuned = Literal["full", "head", "body"]
REGIONS: dict[Tuned, tuple[str, ...]] = {"full": ("body", "norm", "head"), "head": ("head",), "body": ("body", "norm")}
UNSEEN = 500  # test images of classes it never saw that each client is tested on, at most

Column = list[float | None]  # one number a client, None where it has no such images


@dataclass(frozen=True)
class Personal:
    """The outcome for all clients: accuracy[epoch][client], epoch 0 being the client's own model before fine-tuning."""

    part: Tuned
    epochs: int
    lr: float
    accuracy: list[Column]
    loss: Which = "method"
    globally: Column = field(default_factory=list)  # the served model on each client's test images
    forgotten: tuple[Column, Column] = field(default_factory=lambda: ([], []))  # classes never seen: before, after
    sample: int | None = None  # only so many clients were looked at, drawn by the seed

    @property
    def curve(self) -> list[dict[str, float | int]]:
        """Mean and spread over clients after each epoch."""
        return [spread(row) for row in self.accuracy]

    @property
    def initial(self) -> dict[str, float | int]:
        return self.curve[0]

    @property
    def personal(self) -> dict[str, float | int]:
        return self.curve[-1]

    @property
    def unseen(self) -> tuple[dict[str, float | int], dict[str, float | int]]:
        """Of classes that a client never saw: before and after fine-tuning."""
        return spread(self.forgotten[0]), spread(self.forgotten[1])

    def to_json(self) -> dict[str, Any]:
        before, after = self.unseen
        return {
            "part": self.part,
            "epochs": self.epochs,
            "lr": self.lr,
            "loss": self.loss,
            "sample": self.sample,
            "global_accuracy": spread(self.globally),
            "initial_accuracy": self.initial,
            "personal_accuracy": self.personal,
            "unseen_before": before,
            "unseen_after": after,
            "curve": self.curve,
            "clients": np.array(self.accuracy, dtype=object).T.tolist(),
            "clients_global": self.globally,
            "clients_unseen": [list(pair) for pair in zip(*self.forgotten, strict=True)],
        }

    @staticmethod
    def from_json(told: Mapping[str, Any]) -> Personal:
        rows: list[Column] = [list(row) for row in zip(*told["clients"], strict=True)]
        before, after = ([pair[i] for pair in told["clients_unseen"]] for i in (0, 1))
        globally = list(told["clients_global"])
        return Personal(
            told["part"], told["epochs"], told["lr"], rows, told["loss"], globally, (before, after), told["sample"]
        )


@dataclass(frozen=True)
class Start:
    """How clients stand before any fine-tuning; the same for every part, rate and loss."""

    accuracy: Column
    unseen: Column


def where_clients_start(fed: Federation, unseen: int = UNSEEN, sample: int | None = None) -> Start:
    """Every client's own model of a federation that stands at its last round."""
    reports = _run(fed, "full", 0, 1.0, "method", unseen, True, None, sample)
    return Start(_share(reports, "correct", "total", 0), _share(reports, "unseen", "unseen_total", 0))


def fine_tune(
    fed: Federation,
    part: Tuned,
    epochs: int,
    lr: float,
    done: Callable[[int], None] | None = None,
    *,
    loss: Which = "method",
    unseen: int = UNSEEN,
    start: Start | None = None,
    globally: Column | None = None,
    sample: int | None = None,
) -> Personal:
    """Fine-tune every client of a federation that stands at its last round."""
    check(fed.experiment.layout.regions, part, epochs, lr, loss)
    start = start or where_clients_start(fed, unseen, sample)
    reports = _run(fed, part, epochs, lr, loss, unseen, False, done, sample) if epochs else []
    table = [start.accuracy, *(_share(reports, "correct", "total", epoch) for epoch in range(epochs))]
    after = _share(reports, "unseen", "unseen_total", 0) if epochs else start.unseen
    return Personal(part, epochs, lr, table, loss, globally or [], (start.unseen, after), sample)


def _run(
    fed: Federation,
    part: Tuned,
    epochs: int,
    lr: float,
    loss: Which,
    unseen: int,
    first: bool,
    done: Callable[[int], None] | None,
    sample: int | None,
) -> Sequence[dict[str, Any] | None]:
    fed.board.broadcast(fed.state.served())
    partition, seed = fed.experiment.partition, fed.experiment.recipe.seed
    chosen = list(range(partition.clients))
    if sample is not None and sample < len(chosen):
        chosen = sorted(numpy_generator(seed, "looked at").permutation(len(chosen))[:sample].tolist())
    how = {"regions": list(REGIONS[part]), "epochs": epochs, "lr": lr, "loss": loss, "unseen": unseen, "first": first}
    jobs = [
        Job("tune", {"client": client, **how}, len(partition.train(client)), remember(fed, client)) for client in chosen
    ]
    found = dict(zip(chosen, fed.lanes.run(jobs, done), strict=True))
    return [found.get(client) for client in range(partition.clients)]


def _share(reports: Sequence[dict[str, Any] | None], right: str, total: str, place: int) -> Column:
    return [r[right][place] / r[total] if r and r[total] else None for r in reports]


def check(regions: Regions, part: str, epochs: int, lr: float, loss: str = "method") -> None:
    """Whether there is something to fine-tune, in one sentence if not."""
    if part not in REGIONS:
        raise FedloomError(f"part: {shown(part)} is unknown; allowed are {', '.join(REGIONS)}")
    if epochs < 0:
        raise FedloomError(f"epochs: must not be negative (got {epochs})")
    if not 0 < lr < float("inf"):
        raise FedloomError(f"lr: must be greater than 0 (got {lr})")
    if loss not in get_args(Which):
        raise FedloomError(f"loss: {shown(loss)} is unknown; allowed are {', '.join(get_args(Which))}")
    names = regions.select(*REGIONS[part])
    if epochs and not any(n not in regions.statistics and n not in regions.constant for n in names):
        fixed = "is fixed by the method" if names else "does not exist in this net"
        raise FedloomError(f"part: the {part} {fixed}, so there is nothing to fine-tune; choose another part")


def restore_finished(fed: Federation, folder: RunFolder) -> None:
    """Bring a federation to the end of its finished run."""
    if not folder.finished:
        raise FedloomError(f"{folder.path} is not finished; carry it on with: fedloom run --resume {folder.path}")
    if isinstance(fed.memory, Ledger):
        _check_sites(fed, folder)
    checkpoint.restore(folder.checkpoints, fed.state, fed.memory, fed.experiment.recipe.digest())
    if fed.state.round != fed.experiment.recipe.rounds:
        raise FedloomError(f"{folder.path} has lost its last checkpoint, so its clients' state is not known")


def _check_sites(fed: Federation, folder: RunFolder) -> None:
    """Of a run on real machines the server can fine-tune what needs neither the sites' images nor what they remember."""
    there = "at each site, use: fedloom flower personalize"
    if not len(fed.experiment.images.train_y):
        raise FedloomError(f"{folder.path}: the images of this run are at its sites; {there}")
    method, layout = fed.experiment.method, fed.experiment.layout
    remembering = {item.name.partition(".")[0] for item in fed.experiment.messages.memory.items}
    seen = {part.name for hook in ("objective", "penalty", "personalise") for part in method.hooked(hook)}
    if layout.personal or layout.personal_statistics or remembering & seen:
        raise FedloomError(f"{folder.path}: what clients of {method} keep for themselves is at their sites; {there}")


def store(folder: RunFolder, outcome: Personal, digest: str = "") -> Path:
    """personal/PART-EPOCHS-LR.json, with the loss behind it where that is not the method's own."""
    path = _place(folder, outcome.part, outcome.epochs, outcome.lr, outcome.loss, outcome.sample)
    write_json(path, {**outcome.to_json(), "weights": digest})
    return path


def _place(folder: RunFolder, part: Tuned, epochs: int, lr: float, loss: Which, sample: int | None) -> Path:
    other = "" if loss == "method" else f"-{loss}"
    few = "" if sample is None else f"-of{sample}"
    return folder.path / "personal" / f"{part}-{epochs}-{lr:g}{other}{few}.json"


def stored(
    folder: RunFolder, part: Tuned, epochs: int, lr: float, loss: Which, digest: str, sample: int | None = None
) -> Personal | None:
    """The outcome of an earlier call on these very weights, if there is one."""
    told = read_json(_place(folder, part, epochs, lr, loss, sample))
    if not isinstance(told, dict) or not digest or told.get("weights") != digest or told.get("lr") != lr:
        return None
    try:
        return Personal.from_json(told)
    except (KeyError, TypeError, ValueError):
        return None  # written by another version: it is made again
