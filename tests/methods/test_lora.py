"""LoRA: low-rank adapters are trained and sent, the base neither."""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from folders import check_whole
from processes import Child, die_at
from reference import HEAD, Problem, Weights, flat, mean, read
from reference_personal import NORMED
from safetensors.torch import load_file, save_file
from tiny import HEAD_BYTES, TINY, agree, checkpoint, distance, gap, memories, problem, traffic, train
from torch import Tensor

import fedloom as fl
from fedloom import FedloomError
from fedloom.engine.experiment import prepare
from fedloom.engine.server.callback import RunCallback
from fedloom.recipe import recipe
from fedloom.runs.folder import create
from fedloom.runs.run import federation, go

pytest.importorskip("peft")

A, B = "body.1.lora_A.default.weight", "body.1.lora_B.default.weight"
BASE = ("body.1.base_layer.weight", "body.1.base_layer.bias")
TRAINED = (A, B, *HEAD)
ADAPTER_BYTES = 4 * 2 * (64 + 64)  # of rank 2
CONVOLVED = """
from torch import nn

def net(shape, classes):
    body = nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 16)
    )
    return body, nn.Linear(16, classes)
"""


def features(w: Weights, x: Tensor, scale: float) -> Tensor:
    weight = w["body.1.base_layer.weight"] + scale * w[B] @ w[A]
    return torch.relu(x @ weight.T + w["body.1.base_layer.bias"])


def loss_of(scale: float) -> reference.Loss:
    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        logits = features(w, x, scale) @ w["head.weight"].T + w["head.bias"]
        return -logits.log_softmax(1)[torch.arange(len(y)), y].mean()

    return loss


# the equation


@pytest.mark.parametrize(("rank", "alpha"), [(2, 8.0), (4, 1.0)])
def test_adapters_and_head_are_trained_as_the_equation_says(rank: int, alpha: float) -> None:
    run = train(f"lora(rank={rank}, alpha={alpha})", rounds=4, workers=2)
    agree(run, reference.fedavg(problem(run), loss_of(alpha / rank), TRAINED))
    assert distance(run, (A,)) > 1e-4 and distance(run, (B,)) > 1e-3


def test_the_base_keeps_its_bits() -> None:
    run = train("lora(rank=2)")
    first, last = load_file(run.path / "initial.safetensors"), load_file(run.path / "final.safetensors")
    assert all(torch.equal(first[name], last[name]) for name in BASE)


def test_the_initial_model_is_the_base() -> None:
    plain, adapted = train("fedavg", rounds=1), train("lora(rank=2)", rounds=1)
    base, first = (load_file(run.path / "initial.safetensors") for run in (plain, adapted))
    for name in ("weight", "bias"):
        assert torch.equal(first[f"body.1.base_layer.{name}"], base[f"body.1.{name}"])
        assert torch.equal(first[f"head.{name}"], base[f"head.{name}"])
    assert torch.equal(first[B], torch.zeros(64, 2))
    assert 0 < float(first[A].abs().max()) <= 1 / 8  # as in nn.Linear, 1 / sqrt(in)


def test_adapters_without_weight_leave_a_frozen_body() -> None:
    run = train("lora(rank=2, alpha=1e-30)")
    told = problem(run)
    w = told.initial
    plain = {"body.1.weight": w[BASE[0]], "body.1.bias": w[BASE[1]], **{name: w[name] for name in HEAD}}
    told.initial = plain
    expected = reference.fedavg(told, names=HEAD)
    final = read(run.path / "final.safetensors")
    for name in HEAD:
        torch.testing.assert_close(final[name], expected[name], rtol=0, atol=1e-5)


def test_draws_of_the_adapters_are_the_same_in_every_sum_and_differ_by_seed() -> None:
    drawn = [
        load_file(train(text, rounds=1, seed=seed).path / "initial.safetensors")[A]
        for text, seed in (("lora", 0), ("etf + lora", 0), ("lora + fn", 0), ("lora", 1))
    ]
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])


# sums


def scaffold(p: Problem, loss: reference.Loss, names: tuple[str, ...]) -> tuple[Weights, Weights]:
    """Option II on these tensors alone."""
    w = p.initial
    zero = {name: torch.zeros_like(w[name]) for name in names}
    c, c_i = zero, [zero for _ in p.data]
    for t, cohort in p.rounds:
        uploads, changes = [], []
        for k in cohort:
            w_k = p.local(w, t, k, loss, names, lambda name, _, k=k, c=c: c[name] - c_i[k][name])
            scale = p.rate(t) * p.effective(p.steps(k))
            new = {n: c_i[k][n] - c[n] + (w[n] - w_k[n]) / scale for n in names}
            changes.append({n: new[n] - c_i[k][n] for n in names})
            uploads.append(w_k)
            c_i[k] = new
        w = mean(uploads, p.shares(cohort))
        average = mean(changes, [1 / len(cohort)] * len(cohort))
        c = {n: c[n] + len(cohort) / len(p.data) * average[n] for n in names}
    return w, c


def test_scaffolds_controls_are_those_of_adapters_and_head() -> None:
    run = train("lora(rank=2) + scaffold", rounds=4)
    w, c = scaffold(problem(run), loss_of(4.0), TRAINED)
    agree(run, w)
    torch.testing.assert_close(checkpoint(run)["server.scaffold.control"].double(), flat(c, TRAINED), rtol=0, atol=1e-5)
    assert traffic(run) == {(2 * (ADAPTER_BYTES + HEAD_BYTES),) * 2}


def test_with_fn_the_adapted_features_are_normalized() -> None:
    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        f = features(w, x, 4.0)
        logits = (f / f.square().sum(1, keepdim=True).sqrt()) @ w["head.weight"].T
        return -logits.log_softmax(1)[torch.arange(len(y)), y].mean()

    run, turned = train("lora(rank=2) + fn"), train("fn + lora(rank=2)")
    agree(run, reference.fedavg(problem(run), loss, (A, B, "head.weight")))
    assert run.summary["digest"] == turned.summary["digest"]


def test_with_fedper_the_head_stays_at_home_and_adapters_alone_travel() -> None:
    run = train("lora(rank=2) + fedper")
    assert traffic(run) == {(ADAPTER_BYTES, ADAPTER_BYTES)}
    assert distance(run, HEAD) == 0 and distance(run, (A, B)) > 1e-3
    assert {len(tensors["personal"]) for tensors in memories(run).values()} == {HEAD_BYTES // 4}


def test_lg_keeps_adapters_with_their_clients_and_shares_the_head() -> None:
    run = train("lora(rank=2) + lg")
    assert traffic(run) == {(HEAD_BYTES, HEAD_BYTES)}
    assert {len(tensors["personal"]) for tensors in memories(run).values()} == {ADAPTER_BYTES // 4}
    assert traffic(train("lora(rank=2) + lg(shared=body)")) == {(ADAPTER_BYTES, ADAPTER_BYTES)}


def test_fedrep_trains_the_own_head_then_the_adapters() -> None:
    run = train("lora(rank=2) + fedrep(head_epochs=2)", rounds=1, batch="full")
    told = problem(run)
    uploads = []
    for k in told.cohorts[0]:
        draws = told.shuffles(1, k)
        headed = told.local(told.initial, 1, k, loss_of(4.0), HEAD, batches=told.batches(k, 2, draws))
        uploads.append(told.local(headed, 1, k, loss_of(4.0), (A, B), batches=told.batches(k, 3, draws)))
    expected = mean(uploads, told.shares(told.cohorts[0]))
    final = read(run.path / "final.safetensors")
    for name in (A, B):
        torch.testing.assert_close(final[name], expected[name], rtol=0, atol=1e-5)


def test_dp_clips_what_is_sent_and_nothing_else() -> None:
    text, fields = "lora(rank=2) + dp(clip=0.05, noise=0)", {"rounds": 1, "weighting": "uniform"}
    run = train(text, **fields)
    told = problem(run)
    total = {name: torch.zeros_like(told.initial[name]) for name in TRAINED}
    for k in told.cohorts[0]:
        w_k = told.local(told.initial, 1, k, loss_of(4.0), TRAINED)
        move = {name: w_k[name] - told.initial[name] for name in TRAINED}
        length = reference.square(move) ** 0.5
        assert length > 0.05
        total = {name: total[name] + move[name] * 0.05 / length for name in TRAINED}
    final = read(run.path / "final.safetensors")
    for name in TRAINED:
        expected = told.initial[name] + total[name] / len(told.cohorts[0])
        torch.testing.assert_close(final[name], expected, rtol=0, atol=1e-5)


def test_babu_and_train_head_false_leave_the_head_as_it_is() -> None:
    one, other = train("lora(rank=2) + babu"), train("lora(rank=2, train_head=false)")
    assert traffic(one) == traffic(other) == {(ADAPTER_BYTES, ADAPTER_BYTES)}
    assert gap(one, other) == 0 and distance(one, (A, B)) > 1e-3


@pytest.mark.parametrize(
    "text",
    [
        "prox",
        "fedavgm",
        "feddyn",
        "moon",
        "kd",
        "ditto",
        "nova",
        "dr + fd",
        "fnr(epochs=1)",
        "feddc",
        "local",
        "central",
    ],
)
def test_it_adds_up_and_the_base_never_moves(text: str) -> None:
    run = train(f"lora(rank=2) + {text}", batch=64, epochs=1, lr=0.02)
    assert distance(run, BASE) == 0
    kept = memories(run)
    moved = max(
        (float(tensors["personal"].abs().max()) for tensors in kept.values() if "personal" in tensors), default=0
    )
    assert distance(run, (A, B)) > 1e-6 or moved > 1e-6


# normalizers


def test_normalizers_keep_the_scale_shift_and_statistics_of_the_base() -> None:
    Path("net.py").write_text(CONVOLVED)
    run = train("lora(rank=2)", model="net.py:net", batch=64, lr=0.02)
    names = [name for name in run.weights if ".1." in name and "lora" not in name]
    assert len(names) == 4 and distance(run, tuple(names)) == 0
    adapters = sum(tensor.numel() for name, tensor in run.weights.items() if "lora_" in name)
    assert traffic(run) == {(4 * (adapters + 16 * 10 + 10),) * 2}


def test_normalizers_are_trained_and_sent_if_asked() -> None:
    Path("net.py").write_text(CONVOLVED)
    run = train("lora(rank=2, train_norm=true)", model="net.py:net", batch=64, lr=0.02)
    for leaf in ("weight", "bias", "running_mean", "running_var"):
        assert distance(run, (f"body.1.{leaf}",)) > 1e-4
    assert distance(run, ("body.0.base_layer.weight",)) == 0
    kept = train("lora(rank=2, train_norm=true) + fedbn", model="net.py:net", batch=64, lr=0.02)
    assert distance(kept, ("body.1.weight",)) == 0 and len(memories(kept)) > 0


def test_in_training_normalizers_use_the_statistics_of_the_base() -> None:
    """One step on a normalizer that computes as in evaluation: the gradient is that of a fixed affine map."""
    Path("normed.py").write_text(NORMED)
    run = train("lora(rank=2)", model="normed.py:normed", rounds=2)

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        weight = w["body.1.base_layer.weight"] + 4.0 * w[B] @ w[A]
        raw = x @ weight.T + w["body.1.base_layer.bias"]
        normal = (raw - w["body.2.running_mean"]) / (w["body.2.running_var"] + 1e-5).sqrt()
        f = torch.relu(normal * w["body.2.weight"] + w["body.2.bias"])
        logits = f @ w["head.weight"].T + w["head.bias"]
        return -logits.log_softmax(1)[torch.arange(len(y)), y].mean()

    agree(run, reference.fedavg(problem(run), loss, TRAINED))


# refusals


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"method": "lora(targets=conv9)"},
            r"lora: targets='conv9' names no layer of the body; it can be body.1 \(Linear",
        ),
        ({"method": 'lora(targets="(")'}, r"lora: targets='\(' is no regular expression"),
        ({"method": "lora(rank=0)"}, r"lora\(rank=0\): input should be greater than or equal to 1"),
        ({"method": "lora(dropout=1)"}, r"lora\(dropout=1\): input should be less than 1"),
        ({"method": "lora", "model": "linear"}, "lora: the body of this net has no linear layer or convolution"),
        ({"method": "lora + wn", "model": "cnn"}, "lora: body.0 is a convolution that another part has made normalize"),
        (
            {"method": "norm + lora", "model": "cnn"},
            "lora: body.0 is a convolution that another part has made normalize",
        ),
        (
            {"method": "lora + fedbn", "model": "normed.py:normed"},
            "lora fixes body.2.weight for good, so fedbn has nothing",
        ),
        ({"method": "lora", "bn": "local", "model": "normed.py:normed"}, "lora keeps the statistics of the base"),
        ({"method": "lora(train_head=false) + fedper"}, "lora and fedper both decide what happens to the head"),
        ({"method": "lora(dropout=0.1)", "vmap": 3}, "vmap: the net cannot be vmapped"),
    ],
    ids=lambda value: value["method"] if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], sentence: str) -> None:
    Path("normed.py").write_text(NORMED)
    with pytest.raises(FedloomError, match=sentence):
        train(**fields)
    assert not Path("runs").exists()


def test_without_peft_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(FedloomError, match=r'method: lora: .* peft library.*pip install -e ".*\[lora\]"'):
        train("lora")


# a pretrained base


def test_a_plain_nets_weights_become_the_base() -> None:
    pretrained = train("central", rounds=2)
    run = train("lora(rank=2)", init=str(pretrained.path / "final.safetensors"))
    base, first = pretrained.weights, load_file(run.path / "initial.safetensors")
    final = run.weights
    for name in ("weight", "bias"):
        assert torch.equal(first[f"body.1.base_layer.{name}"], base[f"body.1.{name}"])
        assert torch.equal(final[f"body.1.base_layer.{name}"], base[f"body.1.{name}"])
        assert torch.equal(first[f"head.{name}"], base[f"head.{name}"])
    assert run.summary["init"]["missing"] == [A, B] and run.summary["init"]["unused"] == []


def test_an_adapted_run_continues_from_another_ones_end() -> None:
    pretrained = train("central", rounds=1, seed=3)
    first = train("lora(rank=2)", init=str(pretrained.path / "final.safetensors"))
    second = train("lora(rank=2)", init=str(first.path / "final.safetensors"), seed=7)
    start = load_file(second.path / "initial.safetensors")
    assert all(torch.equal(start[name], tensor) for name, tensor in first.weights.items())


def test_a_base_with_normalizers_is_loaded_with_its_statistics() -> None:
    Path("net.py").write_text(CONVOLVED)
    pretrained = train("central", rounds=1, model="net.py:net", batch=64, lr=0.02)
    run = train("lora(rank=2)", init=str(pretrained.path / "final.safetensors"), model="net.py:net", batch=64, lr=0.02)
    assert torch.equal(run.weights["body.1.running_var"], pretrained.weights["body.1.running_var"])
    assert torch.equal(run.weights["body.0.base_layer.weight"], pretrained.weights["body.0.weight"])
    assert float((pretrained.weights["body.1.running_var"] - 1).abs().max()) > 1e-3


# same bits


def test_a_killed_run_resumes_to_the_same_bits() -> None:
    fields = {**TINY, "method": "lora(rank=2) + scaffold", "checkpoint_seconds": 0}
    like = fl.run(fields, out="straight")
    for step in (7, 23, 37):
        path = Path(f"killed-{step}")

        def work(step: int = step, path: Path = path) -> None:
            die_at(step)
            fl.run(fields, out=str(path))

        assert Child(work).wait() == -signal.SIGKILL
        check_whole(fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path)), like)


@pytest.mark.slow
def test_workers_in_fresh_processes_build_the_same_adapters() -> None:
    """They get the recipe and the initial weights, and inject the adapters by themselves."""
    pretrained = train("central", rounds=1)
    fields = {**TINY, "method": "lora(rank=2) + fn", "init": str(pretrained.path / "final.safetensors"), "workers": 2}
    experiment = prepare(recipe(fields))
    run = go(experiment, create(experiment, Path("spawned")), RunCallback(), partial(federation, spawned=True))
    check_whole(run, fl.run(fields, out="forked"))


@pytest.mark.parametrize("text", ["lora(rank=2) + scaffold", "lora(rank=2, dropout=0.2)"])
def test_workers_vmap_and_batches_change_no_bit_or_next_to_none(text: str) -> None:
    fields = {"batch": 24, "epochs": 1, "vmap": "off", "lr": 0.01}  # at 0.1 it diverges, and rounding grows
    runs = [train(text, workers=workers, **fields) for workers in (1, 2)]
    assert runs[0].summary["digest"] == runs[1].summary["digest"]
    if "dropout" not in text:
        assert gap(runs[0], train(text, **{**fields, "vmap": 3})) < 1e-5


def test_a_file_that_holds_only_a_body_is_enough() -> None:
    pretrained = train("central", rounds=1).weights
    save_file({name: tensor for name, tensor in pretrained.items() if name.startswith("body")}, "body.safetensors")
    run = train("lora(rank=2)", init="body.safetensors", rounds=1)
    assert torch.equal(run.weights[BASE[0]], pretrained["body.1.weight"])
    assert set(run.summary["init"]["missing"]) == {A, B, *HEAD}


def test_fine_tuning_trains_adapters_but_never_the_base() -> None:
    run = train("lora(rank=2)", split="shards:2")
    full, body, adapter = (fl.personalize(run, part, epochs=2, lr=0.1) for part in ("full", "body", "adapter"))
    assert body.accuracy == adapter.accuracy
    assert full.personal["mean"] > full.initial["mean"]
    with pytest.raises(FedloomError, match="part: the adapter does not exist in this net"):
        fl.personalize(train("fedavg", rounds=1), "adapter")
