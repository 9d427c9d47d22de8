"""A tuning before it starts: every method's search space, checked, and the recipe of its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.engine.backends import select as where
from fedloom.engine.experiment import prepare
from fedloom.engine.given import given_recipe
from fedloom.engine.resolve import resolve
from fedloom.errors import FedloomError, shown
from fedloom.evaluation.clients import personal_models
from fedloom.evaluation.metrics import Metric, find_metric
from fedloom.evaluation.metrics import check as check_metrics
from fedloom.methods import method
from fedloom.methods.api.search import Choices, Span
from fedloom.recipe import NO_EFFECT_FIELDS, Recipe
from fedloom.studies.cells import folder_name
from fedloom.studies.tune.baseline import baseline
from fedloom.studies.tune.budget import Budget
from fedloom.studies.tune.halving import generations, rounds_of, rungs, trials_within
from fedloom.studies.tune.over import Over, read_over
from fedloom.studies.tune.sampler import all_points, optuna
from fedloom.studies.tune.space import Point, Space, Usual, space_of

VALIDATION = 0.1  # share of every client's training samples, unless the recipe says
OUT = Path("runs/tune")
# trials are evaluated where they are compared, and never on test samples
TRIAL = {"eval_every": 0, "eval_clients": 0, "eval_test": False, "analyze_every": 0, "track": None, "name": None}


@dataclass(frozen=True)
class Planned:
    """`base`: the recipe without tuning. `own`: methods whose clients have models of their own, which are selected on them."""

    root: Path
    base: Recipe
    spaces: tuple[Space, ...]
    budget: Budget
    marks: tuple[int, ...]  # rounds after which trials are compared
    samples: int  # validation samples
    own: frozenset[str]
    baselines: tuple[float, ...]  # of every method: the value of a model that learned nothing
    asked: Mapping[str, Any]

    @property
    def metric(self) -> Metric:
        return find_metric(self.base.headline)

    def recipe(self, number: int, trial: int, point: Point) -> Recipe:
        """Of a trial of a method."""
        space = self.spaces[number]
        out = self.root / folder_name(space.row) / f"trial-{trial:03d}"
        metrics = tuple(dict.fromkeys((*self.base.metrics, "loss")))  # equal trials are ranked by the loss
        return space.recipe(point, **TRIAL, metrics=metrics, out=str(out))

    def trials(self, space: Space) -> int | None:
        """Number of trials of a method; None: it follows from the time that rounds take."""
        if self.budget.seconds is not None:
            return None
        if self.budget.rounds is not None:
            return trials_within(self.budget.rounds / len(self.spaces), self.marks)
        assert self.budget.trials is not None
        every = all_points(space, self.budget.trials)
        return self.budget.trials if every is None else len(every)

    @property
    def rounds(self) -> int | None:
        """What all trials take at most; None if it follows from the time that they take."""
        counts = [self.trials(space) for space in self.spaces]
        return None if None in counts else sum(rounds_of(generations(n or 1), self.marks) for n in counts)


def plan(
    methods: str | Sequence[str],
    fields: Mapping[str, Any],
    over: Over,
    budget: Budget,
    halving: bool = True,
    usual: Usual = lambda row: row,
) -> Planned:
    """Everything is read and built once before anything is written. `fields`: those that the user gave."""
    optuna()
    rows = _rows(methods)
    base, held_out = given_recipe(fields), _with_validation(fields)
    free = {name for name in ("split", "clients") if name not in fields}  # decided by the data
    tuned = given_recipe(held_out)
    dumped = tuned.model_dump(exclude=free)
    if "lr" not in fields:
        dumped.pop("lr")  # so that a method's space knows that it was not given
    ranges = read_over(over)
    spaces = tuple(space_of(row, dumped, ranges, usual) for row in rows)
    _refuse_unused(ranges, spaces)
    if not any(space.ranges for space in spaces):
        raise FedloomError("over: nothing is tuned of any method; add for instance --over lr=log:0.003..3")
    root = Path(base.out) if base.out else Path("runs") / base.name if base.name else OUT
    samples, own, baselines = 0, set(), []
    for space in spaces:
        experiment = _checked(space)
        samples = len(experiment.data.validation)
        baselines.append(baseline(experiment, tuned.headline))
        if personal_models(experiment.program):
            own.add(space.row)
            if tuned.data.validation_from == "pool":
                raise FedloomError(
                    f"data.validation_from: clients of {shown(space.row)} have models of their own, which need validation "
                    f"samples of their own; allowed is clients (got pool)"
                )
    marks = rungs(tuned.rounds, halving)
    asked = {
        "methods": rows,
        "over": {name: str(values) for name, values in ranges.items()},
        "trials": budget.trials,
        "budget": None if budget.trials is not None else str(budget),
        "halving": halving,
        "rungs": list(marks),
        "metric": tuned.headline,
        "spaces": [{name: str(values) for name, values in space.ranges.items()} for space in spaces],
        "recipe": _identity(tuned),
    }
    return Planned(root, base, spaces, budget, marks, samples, frozenset(own), tuple(baselines), asked)


def _rows(methods: str | Sequence[str]) -> list[str]:
    texts = methods.split(";") if isinstance(methods, str) else list(methods)
    rows = [text.strip() for text in texts if text.strip()]
    if not rows:
        raise FedloomError('methods: none given; separate them by semicolons, as in "fedavg; fn; dr + fd(beta=?)"')
    names: dict[str, str] = {}
    for row in rows:
        if other := names.get(folder_name(row)):
            raise FedloomError(f"methods: {shown(other)} and {shown(row)} would share a folder; they say the same")
        names[folder_name(row)] = row
    return rows


def _with_validation(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with samples held out by every client, unless the user says how."""
    data = fields.get("data", {})
    data = {"name": data} if isinstance(data, str) else dict(data)
    if not data.get("validation"):
        data["validation"] = VALIDATION
    data.setdefault("validation_from", "clients")
    return {**fields, "data": data}


def _refuse_unused(ranges: Mapping[str, Any], spaces: Sequence[Space]) -> None:
    for name in ranges:
        if not any(name in space.ranges for space in spaces):
            part = name.partition(".")[0]
            raise FedloomError(
                f"over: {name} is tuned, but no method has the part {shown(part)}; add the part to one, or leave it out"
            )


def _checked(space: Space) -> Any:
    """Build the default, and read what lies at the ends of every range, so that no trial is refused later."""
    recipe = space.recipe(space.default, **TRIAL)
    where.check(recipe)
    experiment, _ = resolve(prepare(recipe))
    check_metrics(recipe.metrics)
    for name, values in space.ranges.items():
        ends = values.values if isinstance(values, Choices) else (values.low, values.high)
        for end in ends:
            try:
                method(space.recipe({**space.default, name: end}).method)
            except FedloomError as error:
                kind = "range" if isinstance(values, Span) else "values"
                raise FedloomError(f"over: the {kind} {values} of {name} cannot be used: {error}") from None
    return experiment


def _identity(recipe: Recipe) -> dict[str, Any]:
    """Fields that decide the result of a trial, and the metrics."""
    left_out = {name for name in NO_EFFECT_FIELDS if name != "metrics"} | {"method", "lr"}
    return {**recipe.model_dump(mode="json", exclude=left_out), "lr": recipe.lr}
