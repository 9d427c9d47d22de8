"""What is tuned of a method, in which range, and what is refused."""

from __future__ import annotations

import pytest

import fedloom as fl
from fedloom.evaluation.metrics import find_metric
from fedloom.methods.api.registry import PARTS
from fedloom.methods.api.search import Choices, Span
from fedloom.studies.tune.halving import generations, rounds_of, rungs, trials_within
from fedloom.studies.tune.over import read_over
from fedloom.studies.tune.sampler import Sampler
from fedloom.studies.tune.search import Outcome, Trial, ranked
from fedloom.studies.tune.space import Space, space_of


def space(row: str, over: tuple[str, ...] = (), **fields: object) -> Space:
    return space_of(row, fields, read_over(over))


def test_ranges_grids_and_whole_numbers_are_read() -> None:
    ranges = read_over(
        ["lr=log:0.003..3", "fd.beta=0.3..0.99", "epochs=1..5", "batch=16,full", "schedule=exp:0.9,cosine"]
    )
    assert ranges["lr"] == Span(0.003, 3, True, "--over")
    assert ranges["epochs"] == Span(1, 5, False, "--over") and ranges["epochs"].whole
    assert ranges["batch"] == Choices((16, "full"), "--over")
    assert ranges["schedule"] == Choices(("exp:0.9", "cosine"), "--over")
    assert read_over({"lr": [0.1, 0.3], "fd.beta": "0.3..0.9"})["lr"] == Choices((0.1, 0.3), "--over")


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        (["lr=3..1"], "over: lr: a range goes from a number to a larger one"),
        (["lr=log:0..1"], "over: lr: a logarithmic range begins above 0"),
        (["lr=low..high"], "over: cannot read the range 'low..high' of lr"),
        (["lr"], "over: cannot read 'lr'; write lr=log"),
        (["lr=1,,2"], "over: lr has an empty value"),
        (["lr=1,1"], "over: lr=1 is given twice"),
        (["lr=1,2", "lr=3,4"], "over: lr is given twice"),
        (["split=iid,shards:2"], "over: split cannot be tuned; tunable are lr, "),
        (["rate=1,2"], "over: 'rate' is not known; tunable are lr, "),
    ],
)
def test_what_cannot_be_tuned_is_refused(over: list[str], sentence: str) -> None:
    with pytest.raises(fl.FedloomError) as error:
        read_over(over)
    assert str(error.value).startswith(sentence)


def test_without_over_a_method_has_its_own_space() -> None:
    plain, prox, adam = space("fedavg"), space("fedprox"), space("fedavg", optimizer="adam")
    assert {name: str(values) for name, values in plain.ranges.items()} == {"lr": "log:0.003..1"}
    assert list(prox.ranges) == ["lr", "prox.mu"] and prox.default == {"lr": 0.1, "prox.mu": 0.01}
    assert str(adam.ranges["lr"]) == "log:0.0001..0.03" and adam.default == {"lr": 0.001}
    dr = space("dr + fd")
    assert str(dr.ranges["lr"]) == "log:0.03..50" and list(dr.ranges) == ["lr", "fd.beta"]
    assert [point["lr"] for point in (dr.default, *dr.further)] == [0.1, 2.24]


def test_what_a_method_sets_stays_and_what_it_leaves_open_is_tuned() -> None:
    assert list(space("prox(mu=0.3)").ranges) == ["lr"]
    assert list(space("fn @ lr=0.3").ranges) == []
    opened = space("dr + fd(beta=?) @ epochs=2", ("lr=log:0.1..10",))
    assert list(opened.ranges) == ["lr", "fd.beta"]
    assert opened.sum({"lr": 1.0, "fd.beta": 0.5}) == "dr + fd(beta=0.5)"
    assert opened.recipe({"lr": 1.0, "fd.beta": 0.5}).epochs == 2
    alias = space("feddrplus(beta=?)", ("lr=1,2", "prox.mu=1,2"))
    assert list(alias.ranges) == ["lr", "fd.beta"]  # prox is a part that it does not have
    with pytest.raises(fl.FedloomError, match="sets it too"):
        space("fn @ lr=0.3", ("lr=1,2",))
    with pytest.raises(fl.FedloomError, match="has no range of its own; add --over ditto"):
        space("ditto(lr=?)")


def test_a_declared_range_reaches_to_the_default_and_a_given_one_does_not() -> None:
    assert space("fedavg", lr=5.0).ranges["lr"] == Span(0.003, 5.0, True, space("fedavg").ranges["lr"].source)
    assert list(space("fedavg", lr=5.0).widened) == ["lr"]
    given = space("fedavg", ("lr=log:0.003..3",), lr=5.0)
    assert given.default == {"lr": 3} and not given.widened
    assert space("fedavg", lr=0.12345).default == {"lr": 0.12345}  # not rounded, as the sampled ones are


class FromZero(fl.Part):
    """A logarithmic range cannot hold its default."""

    strength: float = 0.0
    search_ranges = {"strength": Span(0.01, 1.0, log=True, source="a test")}  # noqa: RUF012


def test_a_default_that_no_logarithmic_range_can_hold_is_still_tried_first() -> None:
    made = space("fromzero")
    assert made.default == {"lr": 0.1, "fromzero.strength": 0.0} and list(made.widened) == ["fromzero.strength"]
    sampler = Sampler(made, 0, "higher")
    first = sampler.propose(4)
    assert first[0] == made.default and all(0.01 <= point["fromzero.strength"] <= 1 for point in first[1:])
    for number in range(4):
        sampler.report(number, 0.5 + number / 10, None)
    assert len(sampler.propose(4)) == 4


OURS = [name for name, part in PARTS.items() if part.__module__.startswith("fedloom.")]


@pytest.mark.parametrize("name", [name for name in OURS if PARTS[name].search_ranges or PARTS[name].rate_scale])
def test_a_declared_range_holds_the_default_and_has_a_source(name: str) -> None:
    part = PARTS[name]()
    for field, values in part.search_ranges.items():
        assert values.source and values.low <= part.values()[field] <= values.high
        type(part)(**{field: values.low}), type(part)(**{field: values.high})
    assert part.rate_scale is None or part.rate_scale.source


def test_halving_gives_every_method_the_same_trials_and_rounds() -> None:
    assert rungs(20, True) == (5, 10, 20) and rungs(2, True) == (1, 2) and rungs(20, False) == (20,)
    assert [sum(generations(n)) for n in range(1, 40)] == list(range(1, 40))
    assert generations(16) == [8, 4, 4]
    assert rounds_of([8], (5, 10, 20)) == 8 * 5 + 5 * 5 + 3 * 10  # the default goes on beside four, then two
    assert rounds_of(generations(trials_within(500, (5, 10, 20))), (5, 10, 20)) <= 500


def test_of_equal_trials_the_one_with_the_smaller_loss_is_ahead() -> None:
    """At the first rung many models predict one class: their accuracies are equal, their losses are not."""
    losses = {0: 2.4, 1: 2.2, 2: None, 3: 2.3}
    trials = [Trial(n, {"lr": n}, [Outcome(5, 0.1, loss=loss)]) for n, loss in losses.items()]
    better = Trial(4, {"lr": 4}, [Outcome(5, 0.2, loss=9.0)])
    assert [trial.number for trial in ranked([*trials, better], find_metric("accuracy"))] == [4, 1, 3, 0, 2]
