"""Finished runs of the same recipe, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError
from fedloom.finished.personalize import FineTuning
from fedloom.io.files import read_json
from fedloom.runs.folder import RunFolder
from fedloom.studies.reproduce.jobs import Job, settled


class FinishedRuns:
    """Run folders below some folders by the digest of their recipe."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.by_digest: dict[str, Path] = {}
        for given in folders:
            path = Path(given)
            if not path.is_dir():
                raise FedloomError(f"from: there is no folder {path}")
            for file in sorted(path.rglob("recipe.yaml")):
                folder = RunFolder(file.parent)
                if folder.finished and not any(part.startswith(".") for part in file.relative_to(path).parts):
                    digest = _digest(folder)
                    if digest is not None:
                        self.by_digest.setdefault(digest, folder.path)

    def find(self, job: Job) -> Path | None:
        return self.by_digest.get(job.digest)


def _digest(folder: RunFolder) -> str | None:
    """None for a recipe of another version, of a user's own parts, or a damaged one."""
    try:
        return settled(folder.recipe()).digest()
    except FedloomError:
        return None


def complete(job: Job) -> bool:
    """Whether the run is finished and every fine-tuning of it is stored."""
    folder = RunFolder(job.folder)
    return folder.finished and all(
        stored_curve(folder, tuning, job.tuned_clients) is not None for tuning in job.fine_tunings
    )


def stored_curve(folder: RunFolder, tuning: FineTuning, clients: int | None = None) -> list[dict[str, Any]] | None:
    """Accuracy by epochs of a stored fine-tuning of these weights that is at least as long; None if there is none.

    `clients`: the number of them, where not all are fine-tuned.
    """
    weights = (read_json(folder.summary) or {}).get("digest")
    for path in sorted((folder.path / "personal").glob("*.json")):
        stored = read_json(path)
        if not isinstance(stored, dict) or stored.get("weights") != weights or stored.get("sample") != clients:
            continue
        curve = stored.get("curve")
        same = (stored.get("part"), stored.get("lr"), stored.get("loss", "method")) == (
            *(tuning.part, tuning.lr, tuning.loss),
        )
        if same and isinstance(curve, list) and len(curve) > tuning.epochs:
            return curve
    return None
