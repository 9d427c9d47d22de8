"""Local Adam, AdamW and SGD whose state is reset in every round or kept by the client."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import check_whole, logged
from processes import Child, until
from reference import BODY, HEAD, Problem, Weights, cross_entropy, mean
from tiny import agree, checkpoint, gap, memories, problem, train
from torch import Tensor

import fedloom as fl
from fedloom import FedloomError
from fedloom.engine.client.moments import Moments
from fedloom.engine.client.optimizers import FlatOptimizer, Rule, adam
from fedloom.methods.api.context import ClientContext, Phase, TrainSpec
from fedloom.nets import build
from fedloom.recipe import recipe
from fedloom.weights import Layout, Regions
from fedloom.weights import Weights as FlatWeights

LOCAL: dict[str, Any] = {"lr": 0.003, "weight_decay": 0.02, "batch": 32, "epochs": 2}
# a larger eps than torch's: single and double precision differ in gradients of almost nothing, which Adam would blow up
EPS = 1e-4


def made(p: Problem, weights: Sequence[Tensor], t: int) -> torch.optim.Optimizer:
    """torch's own optimizer with the recipe's settings."""
    r, o = p.recipe, p.recipe["optimizer"]
    if o["name"] == "sgd":
        return torch.optim.SGD(weights, lr=p.rate(t), momentum=r["momentum"], weight_decay=r["weight_decay"])
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[o["name"]]
    betas = (o["beta1"], o["beta2"])
    return kind(weights, lr=p.rate(t), betas=betas, eps=o["eps"], weight_decay=r["weight_decay"])


class Clients:
    """Clients that train with torch's optimizers, in double precision; `kept`: the optimizers' state by client."""

    def __init__(self, p: Problem, phases: Sequence[tuple[int, tuple[str, ...]]] | None = None) -> None:
        self.p, self.kept = p, {}  # type: ignore[var-annotated]
        self.phases = phases or [(p.recipe["epochs"], (*BODY, *HEAD))]

    def train(self, w_g: Weights, t: int, k: int) -> Weights:
        p, w, draws = self.p, {n: v.clone().requires_grad_() for n, v in w_g.items()}, self.p.shuffles(t, k)
        for place, (epochs, names) in enumerate(self.phases):
            optimizer = made(p, [w[name] for name in names], t)
            if p.recipe["optimizer"]["keep"] and (k, place) in self.kept:
                state = self.kept[k, place]
                state["param_groups"] = optimizer.state_dict()["param_groups"]  # the rate of this round
                optimizer.load_state_dict(state)
            for x, y in p.batches(k, epochs, draws):
                optimizer.zero_grad()
                cross_entropy(w, x, y).backward()
                if p.recipe["clip"]:
                    torch.nn.utils.clip_grad_norm_([w[name] for name in names], p.recipe["clip"])
                optimizer.step()
            self.kept[k, place] = optimizer.state_dict()
        return {n: v.detach() for n, v in w.items()}

    def fedavg(self) -> Weights:
        w = self.p.initial
        for t, cohort in self.p.rounds:
            w = mean([self.train(w, t, k) for k in cohort], self.p.shares(cohort))
        return w


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_clients_take_the_steps_of_torchs_optimizer(name: str, keep: bool) -> None:
    settings = {} if name == "sgd" else {"eps": EPS, "beta1": 0.8, "beta2": 0.99}
    fields = {**LOCAL, "lr": 0.01 if name == "sgd" else 0.003}
    run = train("fedavg", **fields, schedule="exp:0.9", workers=2, optimizer={"name": name, "keep": keep, **settings})
    agree(run, Clients(problem(run)).fedavg())


def test_keeping_the_state_and_the_kind_of_decay_make_a_difference() -> None:
    runs = [
        train("fedavg", **LOCAL, optimizer={"name": name, "keep": keep})
        for name, keep in (("adam", False), ("adam", True), ("adamw", False), ("sgd", False), ("sgd", True))
    ]
    for place, one in enumerate(runs):
        assert all(gap(one, other) > 1e-3 for other in runs[place + 1 :])
    assert [bool(memories(run)) for run in runs] == [False, True, False, False, True]


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_vector_moves_by_the_bits_of_torchs_optimizer(name: str) -> None:
    draws = torch.Generator().manual_seed(0)
    w = torch.randn(1001, generator=draws)
    own, first, second = w.clone(), torch.zeros_like(w), torch.zeros_like(w)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    live = w.clone().requires_grad_()
    optimizer = kind([live], lr=0.01, betas=(0.7, 0.95), eps=1e-6, weight_decay=0.1, foreach=False)
    rule = Rule(name, 0.1, 0.0, 0.7, 0.95, 1e-6)  # type: ignore[arg-type]
    for step in range(1, 6):
        gradient = torch.randn(1001, generator=draws)
        live.grad = gradient.clone()
        optimizer.step()
        adam(own, gradient, first, second, step, rule, 0.01)
    assert torch.equal(own, live.detach())


def test_tensors_that_some_phases_leave_out_count_steps_of_their_own() -> None:
    """As torch's optimizer does for a parameter without gradient."""
    net = build("mlp", (1, 8, 8), 10, "running", "torch")
    layout = Layout(net, Regions.of(net, {n: n.partition(".")[0] for n, _ in net.named_parameters()}, {}))
    weights = FlatWeights(net, layout)
    live = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters()}
    optimizer = torch.optim.Adam(live.values(), lr=0.01, foreach=False)
    moments = Moments(layout, weights.vector, True)
    draws = torch.Generator().manual_seed(1)
    head = [n for n in live if n.startswith("head")]
    for names in (head, list(live), head):
        slices = weights.train_only(names)
        own = FlatOptimizer(weights, moments, names, slices, Rule("adam", 0.0, 0.0))
        for _ in range(2):
            weights.gradient.copy_(torch.randn(len(weights.gradient), generator=draws))
            grads = layout.named(weights.gradient)
            for n, value in live.items():
                value.grad = grads[n].clone() if n in names else None
            own.step(0.01)
            optimizer.step()
        own.end()
    for n, value in layout.named(weights.vector).items():
        torch.testing.assert_close(value, live[n].detach(), rtol=0, atol=1e-7)
    assert int(moments.steps["head.weight"]) == 6 and int(moments.steps["body.1.weight"]) == 2


@pytest.mark.parametrize("keep", [False, True])
def test_each_phase_of_fedrep_has_its_own_moments(keep: bool) -> None:
    optimizer = {"name": "adam", "keep": keep, "eps": EPS}
    run = train("fedrep(head_epochs=2)", **LOCAL, optimizer=optimizer)
    p = problem(run)
    clients, heads, w = Clients(p, [(2, HEAD), (2, BODY)]), {}, p.initial
    for t, cohort in p.rounds:
        uploads = [clients.train({**w, **heads.get(k, {n: p.initial[n] for n in HEAD})}, t, k) for k in cohort]
        heads |= {k: {n: upload[n] for n in HEAD} for k, upload in zip(cohort, uploads, strict=True)}
        w = {**w, **mean([{n: upload[n] for n in BODY} for upload in uploads], p.shares(cohort))}
    agree(run, w)


def test_gradients_are_clipped_before_adam_sees_them() -> None:
    run = train("fedavg", **LOCAL, clip=0.3, optimizer={"name": "adam", "eps": EPS})
    agree(run, Clients(problem(run)).fedavg())
    assert gap(run, train("fedavg", **LOCAL, optimizer={"name": "adam", "eps": EPS})) > 1e-3


# one computation for several clients

UNEQUAL: dict[str, Any] = {"rounds": 3, "batch": 24, "clients": 6, "fraction": 0.84, "lr": 0.003}


@pytest.mark.parametrize("method", ["fedavg", "fedrep(head_epochs=2)", "feddyn + babu", "ditto", "moon + fedadam"])
@pytest.mark.parametrize("optimizer", [{"name": "adam", "keep": True}, {"name": "adamw"}, {"keep": True}], ids=str)
def test_vmapped_clients_agree_with_eager_ones(method: str, optimizer: dict[str, Any]) -> None:
    small = {} if "name" not in optimizer else {"eps": EPS}
    fields = {**UNEQUAL, "method": method, "epochs": "1..3", "optimizer": {**optimizer, **small}}
    alone, together = train(**fields), train(**fields, vmap=3)
    assert gap(alone, together) < 1e-5
    one, other = memories(alone), memories(together)
    assert one.keys() == other.keys()
    for client in one:
        for name, tensor in one[client].items():
            torch.testing.assert_close(tensor, other[client][name], rtol=1e-4, atol=1e-5)


def test_bf16_trains_with_adam_and_stays_close_to_fp32() -> None:
    fields = {**UNEQUAL, "method": "fedavg", "optimizer": {"name": "adam", "eps": EPS}}
    assert 0 < gap(train(**fields), train(**fields, precision="bf16")) < 5e-2


# state


def test_the_state_counts_every_step_of_a_client_and_survives_kill_and_resume(straight: Callable[..., fl.Run]) -> None:
    fields: dict[str, Any] = {
        "clients": 10,
        "rounds": 8,
        "workers": 2,
        "lr": 0.003,
        "checkpoint_seconds": 0,
        "batch": 16,
    }
    fields |= {"optimizer": {"name": "adam", "keep": True}, "steps": "3..9", "method": "fedper + fedyogi"}
    like, path = straight(**fields), Path("killed")
    for moment in (2, 5):
        child = Child(lambda: fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path)))
        until(lambda moment=moment: logged(path) >= moment)
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    run = fl.run(resume=path)
    check_whole(run, like)
    done = dict.fromkeys(range(10), 0)
    for line in run.rounds:
        for client, steps in zip(line["cohort"], line["work"], strict=True):
            done[client] += steps
    for client, state in memories(run).items():
        assert state["optimizer_steps"].unique().tolist() == [done[client]]
        assert all(torch.equal(value, memories(like)[client][name]) for name, value in state.items())


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_no_bit(workers: int) -> None:
    fields = {**UNEQUAL, "epochs": "1..2", "optimizer": {"name": "adamw", "keep": True}, "weight_decay": 0.1}
    digests = {train("fedavg", **fields, workers=count).summary["digest"] for count in (2, workers)}
    assert len(digests) == 1


def test_with_kept_momentum_one_client_and_central_train_as_one_optimizer_throughout() -> None:
    """Rounds of one epoch are then one training of as many epochs: torch's SGD made once."""
    fields = {"clients": 1, "fraction": 1.0, "split": "iid", "rounds": 4, "epochs": 1, "batch": 64, "lr": 0.01}
    run = train("fedavg", **fields, optimizer={"keep": True})
    assert gap(run, train("central", **fields, optimizer={"keep": True})) == 0
    p = problem(run)
    w = {n: v.clone().requires_grad_() for n, v in p.initial.items()}
    optimizer = made(p, list(w.values()), 1)
    for t in range(1, 5):
        for x, y in p.batches(0, 1, p.shuffles(t, 0)):
            optimizer.zero_grad()
            cross_entropy(w, x, y).backward()
            optimizer.step()
    agree(run, {n: v.detach() for n, v in w.items()})
    assert gap(run, train("fedavg", **fields)) > 1e-2


def test_local_clients_keep_the_momentum_of_their_own_model() -> None:
    fields = {"rounds": 3, "fraction": 1.0, "epochs": 1, "batch": 32, "lr": 0.01}
    run = train("local", **fields, optimizer={"keep": True})
    clients = Clients(problem(run))
    own = dict.fromkeys(range(5), clients.p.initial)
    for t, cohort in clients.p.rounds:
        own |= {k: clients.train(own[k], t, k) for k in cohort}
    for client, state in memories(run).items():
        expected = torch.cat([own[client][n].reshape(-1) for n in (*BODY, *HEAD)])
        torch.testing.assert_close(state["personal"].double(), expected, rtol=0, atol=1e-5)


class OptimizerFurther(fl.Part):
    """Trains once more after local training."""

    def after_training(self, client: ClientContext) -> None:
        client.train(TrainSpec((Phase(steps=3),)))


def test_further_training_starts_anew_and_leaves_the_kept_state_alone() -> None:
    fields = {**UNEQUAL, "rounds": 1, "epochs": 1, "optimizer": {"name": "adam", "keep": True}}
    plain, further = train("fedavg", **fields), train("optimizerfurther", **fields)
    assert gap(plain, further) > 1e-3
    for client, state in memories(plain).items():
        assert all(torch.equal(value, memories(further)[client][name]) for name, value in state.items())


def test_fine_tuning_uses_the_recipes_optimizer_from_zero() -> None:
    fields = {**UNEQUAL, "rounds": 1, "epochs": 1}
    outcomes = []
    for keep in (False, True):
        run = train("fedavg", **fields, optimizer={"name": "adam", "keep": keep})
        outcomes.append(fl.personalize(run, "full", 2, 0.003).to_json()["clients"])
    assert outcomes[0] == outcomes[1]
    babu = train("babu", **fields, optimizer="adam")  # its head is frozen in training, and has moments only here
    assert (
        fl.personalize(babu, "head", 3, 0.01).personal["mean"] > fl.personalize(babu, "head", 0, 0.01).personal["mean"]
    )


# refusals


@pytest.mark.parametrize("name", ["scaffold", "nova", "feddc"])
def test_parts_that_infer_gradients_from_movement_refuse_other_optimizers_by_name(name: str) -> None:
    with pytest.raises(FedloomError, match=rf"^optimizer.name: {name} .*holds for sgd and not for adam; set it to sgd"):
        train(name, optimizer="adam")
    with pytest.raises(
        FedloomError, match=rf"^optimizer.keep: {name} .*starts at zero in every round; set it to false"
    ):
        train(name, optimizer={"keep": True})
    assert train(name, optimizer={"keep": True}, momentum=0.0, rounds=1).rounds  # nothing is kept


def test_a_rate_that_scales_gradients_is_refused_under_adam() -> None:
    with pytest.raises(FedloomError, match=r"^method: perfedavg: beta scales the gradient .*leave beta out"):
        train("perfedavg(beta=0.1)", optimizer="adam")
    assert train("perfedavg", optimizer="adam", lr=0.003, rounds=1).rounds[0]["lost"] == 0


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("lion", "optimizer.name: must be 'sgd', 'adam' or 'adamw' (got lion)"),
        (3, "optimizer: must be sgd, adam, adamw, or fields of it: name, keep, beta1, beta2, eps (got 3)"),
        ({"beta1": 0.5}, "optimizer: sgd has no beta1; it belongs to adam and adamw (got {'beta1': 0.5})"),
        ({"name": "adam", "beta2": 1.0}, "optimizer.beta2: must be less than 1 (got 1.0)"),
        ({"name": "adam", "keeps": True}, "optimizer.keeps: unknown field; did you mean keep?"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(optimizer: Any, said: str) -> None:
    with pytest.raises(FedloomError) as caught:
        recipe({"optimizer": optimizer})
    assert str(caught.value) == said


def test_the_digest_of_a_recipe_without_an_optimizer_is_as_before() -> None:
    assert recipe({}).digest() == recipe({"optimizer": "sgd", "participation": "fixed"}).digest() == "fcb551d291ed74d3"
    assert recipe({"optimizer": "adam"}).digest() != recipe({"optimizer": "adamw"}).digest() != recipe({}).digest()


def test_checkpoints_of_the_server_hold_nothing_of_the_clients_optimizers() -> None:
    run = train("fedavg", **LOCAL, optimizer={"name": "adam", "keep": True})
    assert not [name for name in checkpoint(run) if "optimizer" in name]
