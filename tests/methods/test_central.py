"""All data in one place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from reference import BODY, HEAD, Weights, cross_entropy, features, normalized_cross_entropy, read
from reference_norms import MAPS, Normalized, accuracy, federated
from reference_personal import NORMED
from tiny import agree, distance, gap, problem, traffic, train

import fedloom as fl
from fedloom import FedloomError, Run


def pooled(run: Run, loss: object = cross_entropy, names: Sequence[str] | None = None) -> Weights:
    """Plain SGD on everybody's images end to end, momentum from zero in every round."""
    told = problem(run)
    told.data = [tuple(torch.cat(piece) for piece in zip(*told.data, strict=True))]  # type: ignore[list-item]
    w = told.initial
    for t in range(1, told.recipe["rounds"] + 1):
        w = told.local(w, t, 0, loss, names)  # type: ignore[arg-type]
    return w


@pytest.mark.parametrize(
    ("method", "loss", "names"),
    [
        ("central", cross_entropy, None),
        ("central(update=body)", cross_entropy, BODY),
        ("central(update=head)", cross_entropy, HEAD),
        ("central + babu", cross_entropy, BODY),
        ("central + fn", normalized_cross_entropy, None),
    ],
)
def test_it_is_sgd_on_the_union_of_all_clients_images(method: str, loss: object, names: Sequence[str] | None) -> None:
    run = train(method, batch=64, rounds=2, workers=2)
    agree(run, pooled(run, loss, names))
    assert traffic(run) == {(0, 0)} and run.summary["shared"] == 0
    assert all(line["cohort"] == [0] for line in run.rounds)
    assert len(run.clients[-1]["accuracy"]) == 5 and "personal_accuracy" not in run.summary


def test_torchs_own_optimizer_comes_to_the_same_weights() -> None:
    run = train("central", rounds=1, epochs=5)
    told = problem(run)
    x, y = (torch.cat(piece) for piece in zip(*told.data, strict=True))
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).double()
    net.load_state_dict(
        {"0.weight": told.initial["body.1.weight"], "0.bias": told.initial["body.1.bias"]}
        | {"2.weight": told.initial["head.weight"], "2.bias": told.initial["head.bias"]}
    )
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.001)
    for _ in range(5):  # full batches: their order does not matter
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        sgd.step()
    agree(run, dict(zip(told.initial, (net[0].bias, net[0].weight, net[2].bias, net[2].weight), strict=True)))


def test_with_one_client_it_is_fedavg_to_the_last_bit() -> None:
    fields = {"clients": 1, "fraction": 1.0, "split": "iid", "batch": 32, "augment": "crop+flip"}
    assert train("central", **fields).summary["digest"] == train("fedavg", **fields).summary["digest"]


def test_the_split_decides_only_what_is_tested_on_and_the_fraction_nothing() -> None:
    one, other = train("central", fraction=0.2), train("central", fraction=1.0)
    assert one.summary["digest"] == other.summary["digest"]
    assert gap(one, train("central", split="shards:2")) < 1e-5  # full batches, in another order


def test_statistics_are_gathered_even_where_the_body_is_not_trained() -> None:
    Path("normed.py").write_text(NORMED)
    run = train("central(update=head)", model="normed.py:normed", lr=0.05)
    moved = {
        n for n, v in read(run.path / "final.safetensors").items() if (v - problem(run).initial[n]).abs().max() > 0
    }
    assert moved == {"head.weight", "head.bias"} | {n for n in problem(run).initial if "running" in n}


def test_fine_tuning_is_on_each_clients_own_dataset() -> None:
    run = train("central", split="shards:2", rounds=1, epochs=1)
    found = fl.personalize(run, epochs=3, lr=0.1)
    assert found.accuracy[0] == run.clients[-1]["accuracy"]
    assert found.personal["mean"] > found.initial["mean"] + 0.1  # two digits each


def test_calibration_at_the_end_is_of_every_image_once_and_costs_no_traffic() -> None:
    run = train("central + sphere(calibrate=true)", lr=0.5)
    assert traffic(run) == {(0, 0)} and distance(run, ("head.weight",)) > 1e-3
    told = problem(run)
    f = torch.cat([features(read(run.path / "final.safetensors"), x) for x, _ in told.data])
    z, y = torch.nn.functional.normalize(f), torch.cat([y for _, y in told.data])
    gram = z.T @ z
    ridge = 1e-3 * gram.trace() / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
    expected = torch.linalg.solve(gram + ridge, z.T @ torch.nn.functional.one_hot(y, 10).double()).T
    torch.testing.assert_close(read(run.path / "final.safetensors")["head.weight"], expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("normalizer", "net"),
    [
        ("norm(kind=gn)", Normalized("gn")),
        ("norm(kind=bn)", Normalized("bn")),
        ("norm(kind=sn)", Normalized("sn")),
        ("agn", Normalized("agn")),
        ("fednn", Normalized("agn", wn=True)),
    ],
)
def test_a_normalizer_is_trained_on_the_union_of_all_images(normalizer: str, net: Normalized) -> None:
    Path("maps.py").write_text(MAPS)
    run = train(f"central + {normalizer}", model="maps.py:maps", lr=0.05, rounds=2)
    told = problem(run)
    told.data = [tuple(torch.cat(piece) for piece in zip(*told.data, strict=True))]  # type: ignore[list-item]
    w = federated(told, net)
    agree(run, w, atol=1e-4)
    assert run.summary["test_accuracy"] == pytest.approx(accuracy(told, net, w), abs=1e-9)
    assert traffic(run) == {(0, 0)}
    assert all(("selectors" in line) == (net.kind in ("sn", "agn")) for line in run.rounds)


@pytest.mark.slow
def test_with_one_client_a_normalizer_is_that_of_fedavg_to_the_last_bit() -> None:
    Path("maps.py").write_text(MAPS)
    fields = {"clients": 1, "fraction": 1.0, "split": "iid", "batch": 32, "model": "maps.py:maps", "lr": 0.05}
    central, fedavg = train("central + fednn", **fields), train("fednn", **fields)
    assert central.summary["digest"] == fedavg.summary["digest"]
    assert [line["selectors"] for line in central.rounds] == [line["selectors"] for line in fedavg.rounds]


@pytest.mark.parametrize("other", ["scaffold", "prox", "median", "nova", "moon", "fnr", "exp", "dp", "fedsol", "feddf"])
def test_parts_about_many_clients_are_refused(other: str) -> None:
    for text in (f"central + {other}", f"{other} + central"):
        with pytest.raises(
            FedloomError, match=rf"method: {other} .*and with central there is one worker that holds all"
        ):
            train(text)


@pytest.mark.parametrize("other", ["local", "fedper", "lg"])
def test_nothing_is_personal_where_all_data_are_in_one_place(other: str) -> None:
    with pytest.raises(FedloomError, match="method: central: all data are in one place, so no client has anything"):
        train(f"central + {other}")
    assert not Path("runs").exists()


def test_resuming_and_lanes_change_nothing() -> None:
    assert train("central", workers=1).summary["digest"] == train("central", workers=3).summary["digest"]
    assert distance(train("central(update=body)"), HEAD) == 0
