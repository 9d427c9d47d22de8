"""Each hook of a part, used by small parts as a user would write them, against the same thing written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pytest
import reference
import torch
from reference import BODY, HEAD, Loss, Problem, Weights, cross_entropy, features, flat, gradients, mean
from tiny import (
    BODY_BYTES,
    MODEL_BYTES,
    agree,
    checkpoint,
    distance,
    fedloom_parts,
    gap,
    memories,
    problem,
    traffic,
    train,
)
from torch import Tensor, nn

import fedloom as fl
from fedloom import FedloomError, Part, Phase, Run
from fedloom.methods import Batch, ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.nets import Net
from fedloom.weights import Regions


def logits(w: Weights, x: Tensor) -> Tensor:
    return features(w, x) @ w["head.weight"].T + w["head.bias"]


def add(w: Weights, move: Weights | float, scale: float = 1.0) -> Weights:
    return {n: v + scale * (move if isinstance(move, float) else move[n]) for n, v in w.items()}


def steps_of(p: Problem, w: Weights, t: int, k: int, gradient: Callable[..., Weights]) -> Weights:
    """A client's epochs with a gradient of its own making: gradient(w, x, y, the client's generator)."""
    draws, velocity = p.shuffles(t, k), {name: torch.zeros_like(value) for name, value in w.items()}
    for x, y in p.batches(k, p.recipe["epochs"], draws):
        g = add(gradient(w, x, y, draws), w, p.recipe["weight_decay"])
        velocity = {n: p.recipe["momentum"] * velocity[n] + g[n] for n in w}
        w = add(w, velocity, -p.rate(t))
    return w


def averaged(p: Problem, client: Callable[[Weights, int, int], Weights]) -> Weights:
    """FedAvg around any local training."""
    w = p.initial
    for t, cohort in p.rounds:
        w = mean([client(w, t, k) for k in cohort], p.shares(cohort))
    return w


# the README's part


class Center(fl.Part): strength: float = 0.1; regularizer = lambda self, batch, client: self.strength * batch.features.mean(0).square().sum()  # noqa: E501, E701, E702, E731  # fmt: skip


def test_a_part_of_two_lines_trains() -> None:
    run = train("center(strength=0.3) + prox(mu=0)", workers=2)
    assert run.summary["method"] == "center(strength=0.3) + prox(mu=0.0)"

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(w, x, y) + 0.3 * features(w, x).mean(0).square().sum()

    agree(run, reference.fedavg(problem(run), loss))


def test_a_part_that_adds_nothing_changes_no_bit() -> None:
    assert train(Center(strength=0)).summary["digest"] == train("fedavg").summary["digest"]


# objective and penalty


class HookSquares(Part):
    """Squared error to one-hot labels instead of cross-entropy."""

    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        return (batch.logits - nn.functional.one_hot(batch.y, 10)).square().mean()


class HookMix(Part):
    """A convex mix with the size of the logits."""

    share: float = 0.5

    def mix_share(self) -> float:
        return self.share

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        return batch.logits.square().mean()


def squares(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    return (logits(w, x) - torch.eye(10, dtype=torch.double)[y]).square().mean()


def test_an_objective_replaces_cross_entropy() -> None:
    run = train("hooksquares")
    agree(run, reference.fedavg(problem(run), squares))


def test_penalties_are_added_or_mixed_in_the_order_of_the_sum() -> None:
    def pull(w: Weights, x: Tensor) -> Tensor:
        return 0.1 * features(w, x).mean(0).square().sum()

    def size(w: Weights, x: Tensor) -> Tensor:
        return logits(w, x).square().mean()

    orders: dict[str, Loss] = {
        "center + hookmix(share=0.25)": lambda w, x, y: (
            0.25 * (cross_entropy(w, x, y) + pull(w, x)) + 0.75 * size(w, x)
        ),
        "hookmix(share=0.25) + center": lambda w, x, y: 0.25 * cross_entropy(w, x, y) + 0.75 * size(w, x) + pull(w, x),
        "hookmix + hooksquares": lambda w, x, y: 0.5 * squares(w, x, y) + 0.5 * size(w, x),
    }
    for text, loss in orders.items():
        run = train(text)
        agree(run, reference.fedavg(problem(run), loss))


# gradient


class HookSame(Part):
    """The gradient hook's own default, spelled out."""

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        return client.gradient_of(batch=batch)


class HookFirstOrder(Part):
    """Per-FedAvg, first order: the gradient on one batch at the place where a step on another one leads."""

    alpha: float = 0.05

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        inner = client.gradient_of(batch=batch)
        return client.gradient_of(at=client.weights - self.alpha * inner, batch=client.draw_batch())


class HookHessianFree(Part):
    """Per-FedAvg, Hessian-free: several gradients around a place that is left as it was."""

    alpha: float = 0.05
    delta: float = 0.1

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        g = client.gradient_of(at=client.weights - self.alpha * client.gradient_of(batch=batch), batch=batch)
        above = client.gradient_of(at=client.weights + self.delta * g, batch=batch)
        below = client.gradient_of(at=client.weights - self.delta * g, batch=batch)
        return g - self.alpha * (above - below) / (2 * self.delta)


class HookLogits(Part):
    """The gradient of another loss than the method's."""

    def gradient(self, batch: Batch, client: ClientContext) -> Tensor:
        return client.gradient_of(loss=lambda seen, _: seen.logits.square().mean(), batch=batch)


@pytest.mark.parametrize("rest", ["fedavg", "prox(mu=0.1) + scaffold", "dr + fd", "fedper", "babu", "fedrep"])
def test_a_gradient_hook_that_changes_nothing_changes_no_bit(rest: str) -> None:
    fields = {"batch": 64, "rounds": 2, "epochs": 2}
    assert train(f"hooksame + {rest}", **fields).summary["digest"] == train(rest, **fields).summary["digest"]


@pytest.mark.parametrize("batch", ["full", 64])
def test_a_gradient_may_be_taken_elsewhere_and_on_an_independent_batch(batch: int | str) -> None:
    run = train("hookfirstorder(alpha=0.2)", batch=batch, rounds=2, epochs=2)
    p = problem(run)

    def client(w: Weights, t: int, k: int) -> Weights:
        x_k, y_k = p.data[k]

        def gradient(w: Weights, x: Tensor, y: Tensor, draws: torch.Generator) -> Weights:
            size = len(y_k) if batch == "full" else min(64, len(y_k))
            other = torch.randperm(len(y_k), generator=draws)[:size]
            there = add(w, gradients(cross_entropy, w, x, y, list(w)), -0.2)
            return gradients(cross_entropy, there, x_k[other], y_k[other], list(w))

        return steps_of(p, w, t, k, gradient)

    agree(run, averaged(p, client))
    assert gap(run, train("fedavg", batch=batch, rounds=2, epochs=2)) > 1e-3


def test_a_gradient_may_be_made_of_several() -> None:
    run = train("hookhessianfree", rounds=2)
    p = problem(run)

    def gradient(w: Weights, x: Tensor, y: Tensor, draws: torch.Generator) -> Weights:
        def at(place: Weights) -> Weights:
            return gradients(cross_entropy, place, x, y, list(w))

        g = at(add(w, at(w), -0.05))
        above, below = at(add(w, g, 0.1)), at(add(w, g, -0.1))
        return {n: g[n] - 0.05 * (above[n] - below[n]) / 0.2 for n in w}

    agree(run, averaged(p, lambda w, t, k: steps_of(p, w, t, k, gradient)))


def test_a_gradient_may_be_of_another_loss() -> None:
    run = train("hooklogits")

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        return logits(w, x).square().mean()

    agree(run, reference.fedavg(problem(run), loss))


# correct


class HookDouble(Part):
    def correct_gradient(self, gradient: Tensor, client: ClientContext) -> None:
        gradient.mul_(2)


class HookShift(Part):
    by: float = 0.01

    def correct_gradient(self, gradient: Tensor, client: ClientContext) -> None:
        gradient.add_(self.by)


@pytest.mark.parametrize(("text", "shift"), [("hookdouble + hookshift", 0.01), ("hookshift + hookdouble", 0.02)])
def test_corrections_act_in_the_order_of_the_sum_before_decay_and_momentum(text: str, shift: float) -> None:
    run = train(text, lr=0.05)
    p = problem(run)

    def gradient(w: Weights, x: Tensor, y: Tensor, draws: torch.Generator) -> Weights:
        g = gradients(cross_entropy, w, x, y, list(w))
        return {n: 2 * g[n] + shift for n in w}

    agree(run, averaged(p, lambda w, t, k: steps_of(p, w, t, k, gradient)))


def test_what_is_not_shared_is_not_corrected() -> None:
    before, after = train("fedper", rounds=1), train("fedper + hookshift(by=5)", rounds=1, workers=2)
    assert gap(before, after) > 0.1
    p = problem(after)

    def client(w: Weights, t: int, k: int) -> Weights:
        return p.local(w, t, k, cross_entropy, extra=lambda name, _: torch.tensor(5.0 if name in BODY else 0.0))

    for k, remembered in memories(after).items():
        torch.testing.assert_close(
            remembered["personal"].double(), flat(client(p.initial, 1, k), HEAD), rtol=0, atol=1e-4
        )


# memory, broadcast, finish, upload, after_combine


class HookPrototypes(Part):
    """Clients send the sum of their features of each class; the server's means come back as targets."""

    pull: float = 0.1

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"means": torch.zeros(task.classes, 64), "known": torch.zeros(task.classes)}

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"visits": torch.zeros((), dtype=torch.int64), "rounds": torch.zeros(task.rounds)}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"sums": torch.zeros(task.classes, 64), "counts": torch.zeros(task.classes)}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        return {"means": state["means"], "known": state["known"]}

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        sent = client.broadcast
        away = (batch.features - sent["means"][batch.y]).square().mean(1)
        return self.pull * (away * sent["known"][batch.y]).mean()

    def after_training(self, client: ClientContext) -> None:
        sums = torch.zeros_like(client.upload["sums"])
        for batch in client.iterate():
            sums.index_add_(0, batch.y, batch.features)
        client.upload["sums"] = sums
        client.upload["counts"] = client.counts
        client.state["visits"] = client.state["visits"] + 1
        client.state["rounds"][client.round - 1] = 1.0

    def after_aggregation(self, server: ServerContext) -> None:
        counts = torch.stack(list(server.extras("counts"))).sum(0)
        means = torch.stack(list(server.extras("sums"))).sum(0) / counts.clamp(min=1)[:, None]
        server.state["known"] = (counts > 0).float()
        server.state["means"] = means


def test_what_parts_send_remember_and_broadcast_goes_round() -> None:
    run = train("hookprototypes", workers=2)
    p = problem(run)
    w, means, known = p.initial, torch.zeros(10, 64, dtype=torch.double), torch.zeros(10, dtype=torch.double)
    for t, cohort in p.rounds:

        def loss(w: Weights, x: Tensor, y: Tensor, means: Tensor = means, known: Tensor = known) -> Tensor:
            away = (features(w, x) - means[y]).square().mean(1)
            return cross_entropy(w, x, y) + 0.1 * (away * known[y]).mean()

        rows = [p.local(w, t, k, loss) for k in cohort]
        y = torch.cat([p.data[k][1] for k in cohort])
        f = torch.cat([features(row, p.data[k][0]) for k, row in zip(cohort, rows, strict=True)])
        known = (torch.bincount(y, minlength=10) > 0).double()
        means = torch.stack([f[y == c].mean(0) if known[c] else torch.zeros(64) for c in range(10)])
        w = mean(rows, p.shares(cohort))
    agree(run, w)
    kept = checkpoint(run)
    torch.testing.assert_close(kept["server.hookprototypes.means"].double(), means, rtol=0, atol=1e-4)
    assert traffic(run) == {(MODEL_BYTES + 4 * 650, MODEL_BYTES + 4 * 650)}
    for k, remembered in memories(run).items():
        took_part = [float(k in cohort) for cohort in p.cohorts]
        assert remembered["hookprototypes.visits"].dtype == torch.int64
        assert int(remembered["hookprototypes.visits"]) == sum(took_part)
        assert remembered["hookprototypes.rounds"].tolist() == took_part


class HookFacts(Part):
    """Sends up what `finish` sees."""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        told = [*task.shape, task.classes, task.clients, task.samples, task.rounds, task.seed]
        return {"seen": torch.zeros(5, 17), "task": torch.tensor(told, dtype=torch.float)}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"seen": torch.zeros(17)}

    def after_training(self, client: ClientContext) -> None:
        facts = [client.round, client.samples, client.steps, client.lr, client.momentum]
        moved = torch.stack([(client.weights - client.global_weights).norm(), client.global_weights.norm()])
        client.upload["seen"] = torch.cat([torch.tensor(facts), moved, client.counts])

    def after_aggregation(self, server: ServerContext) -> None:
        for k, samples, steps, seen in zip(
            server.cohort, server.samples, server.steps, server.extras("seen"), strict=True
        ):
            assert (samples, steps) == (int(seen[1]), int(seen[2]))
            server.state["seen"][k] = seen
        assert sum(server.shares) == pytest.approx(1)
        assert (server.task.clients, server.momentum) == (5, 0.9)


def test_finish_sees_where_the_client_stands() -> None:
    run = train("hookfacts", batch=64, epochs=2, rounds=1, schedule="exp:0.5", seed=3)
    p = problem(run)
    assert checkpoint(run)["server.hookfacts.task"].tolist() == [1, 8, 8, 10, 5, 1437, 1, 3]
    seen = checkpoint(run)["server.hookfacts.seen"].double()
    for k in p.cohorts[0]:
        w = p.local(p.initial, 1, k, cross_entropy)
        moved = reference.square({n: w[n] - p.initial[n] for n in w}) ** 0.5
        facts = [1, len(p.data[k][1]), p.steps(k), 0.1, 0.9, moved, reference.square(p.initial) ** 0.5]
        counts = torch.bincount(p.data[k][1], minlength=10).tolist()
        assert seen[k].tolist() == pytest.approx([*facts, *counts], rel=1e-4)


class HookOrder(Part):
    """Sends up the labels in the order of `over`, and whether anything needs a gradient there."""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"labels": torch.zeros(task.samples), "gradient": torch.zeros(())}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"labels": torch.zeros(task.samples), "gradient": torch.zeros(())}

    def after_training(self, client: ClientContext) -> None:
        labels, gradient = [], False
        for batch in client.iterate():
            labels.append(batch.y)
            gradient |= batch.logits.requires_grad
        client.upload["labels"] = torch.cat(labels).float()
        client.upload["gradient"] = torch.tensor(float(gradient))

    def after_aggregation(self, server: ServerContext) -> None:
        (labels,), (gradient,) = server.extras("labels"), server.extras("gradient")
        server.state["labels"], server.state["gradient"] = labels, gradient


def test_over_gives_the_clients_own_dataset_once_in_order() -> None:
    run = train("hookorder", clients=1, fraction=1.0, split="iid", rounds=1, epochs=1, batch=64)
    kept = checkpoint(run)
    assert kept["server.hookorder.labels"].long().tolist() == problem(run).data[0][1].tolist()
    assert kept["server.hookorder.gradient"] == 0


class HookNoise(Part):
    """Random draws come from the client's generator."""

    def after_training(self, client: ClientContext) -> None:
        client.weights.add_(torch.randn(client.weights.shape, generator=client.generator), alpha=0.01)


def test_draws_of_a_part_do_not_depend_on_the_number_of_lanes() -> None:
    one, three = train("hooknoise", workers=1), train("hooknoise", workers=3)
    assert one.summary["digest"] == three.summary["digest"] != train("fedavg").summary["digest"]


class HookTrainsOn(Part):
    """Extra local work in `finish`, by the same local loop."""

    def after_training(self, client: ClientContext) -> None:
        phase = fl.Phase(2, ("head",))
        client.train(fl.TrainSpec((phase,), lr=0.05, regularizer=lambda batch, _: batch.logits.square().mean()))


def test_finish_may_train_on_with_a_region_a_rate_and_a_penalty_of_its_own() -> None:
    run = train("hooktrainson", rounds=2, momentum=0.0)
    p = problem(run)

    def client(w: Weights, t: int, k: int) -> Weights:
        w = p.local(w, t, k, cross_entropy)
        for _ in range(2):
            g = gradients(lambda w, x, y: cross_entropy(w, x, y) + logits(w, x).square().mean(), w, *p.data[k], HEAD)
            w = {n: v - 0.05 * (g[n] + p.recipe["weight_decay"] * v) if n in HEAD else v for n, v in w.items()}
        return w

    agree(run, averaged(p, client))


# build, regions, phases


class HookNarrow(Part):
    """A head without a bias, drawn anew."""

    def build(self, net: Net, task: TaskInfo) -> Net:
        net.head = nn.Linear(net.dim, task.classes, bias=False)
        return net


class HookBias(Part):
    """Biases stay as drawn, one tensor by name and one by its module."""

    def regions(self, regions: Regions) -> Regions:
        return regions.freeze("body.1.bias").keep("head.bias")


class HookHeadLast(Part):
    """The shared body first, then the shared head."""

    def phases(self, epochs: int) -> list[Phase]:
        return [Phase(1, ("body",)), Phase(epochs, ("head",))]


def test_a_part_may_rebuild_the_net_and_what_it_draws_is_keyed() -> None:
    run, again = train("hooknarrow", rounds=1), train("hooknarrow", rounds=1)
    assert set(run.weights) == {"body.1.weight", "body.1.bias", "head.weight"}
    assert run.summary["digest"] == again.summary["digest"]
    assert train("hooknarrow", rounds=1, seed=1).summary["digest"] != run.summary["digest"]


def test_regions_may_be_single_tensors() -> None:
    run = train("hookbias")
    assert distance(run, ("body.1.bias",)) == distance(run, ("head.bias",)) == 0
    assert distance(run, ("body.1.weight",)) > 1e-3 < distance(run, ("head.weight",))
    assert traffic(run) == {(MODEL_BYTES - 4 * 74, MODEL_BYTES - 4 * 74)}
    assert all(remembered["personal"].shape == (10,) for remembered in memories(run).values())


def test_phases_arrange_what_is_trained_when() -> None:
    run = train("hookheadlast", rounds=2)
    p = problem(run)

    def client(w: Weights, t: int, k: int) -> Weights:
        w = p.local(w, t, k, cross_entropy, BODY, batches=p.batches(k, 1, p.shuffles(t, k)))
        return p.local(w, t, k, cross_entropy, HEAD)

    agree(run, averaged(p, client))


# combine, after_combine, served


class HookMedian(Part):
    def aggregate(self, server: ServerContext) -> Tensor:
        return torch.stack(list(server.uploads)).median(0).values


class HookShrink(Part):
    """After combining, the new weights are changed in place."""

    def after_aggregation(self, server: ServerContext) -> None:
        server.weights.mul_(0.9)


class HookHalf(Part):
    def served_weights(self, weights: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return weights / 2


def test_a_part_may_decide_how_updates_are_combined() -> None:
    run = train("hookmedian", rounds=2)
    p = problem(run)
    w = p.initial
    for t, cohort in p.rounds:
        rows = [p.local(w, t, k, cross_entropy) for k in cohort]
        w = {n: torch.stack([row[n] for row in rows]).median(0).values for n in w}
    agree(run, w)


def test_weights_changed_after_combining_are_the_next_broadcast() -> None:
    run = train("hookshrink")
    p = problem(run)
    w = p.initial
    for t, cohort in p.rounds:
        w = mean([p.local(w, t, k, cross_entropy) for k in cohort], p.shares(cohort))
        w = {n: 0.9 * value for n, value in w.items()}
    agree(run, w)


def test_what_is_served_is_handed_out_and_not_trained_on() -> None:
    run, plain = train("hookhalf"), train("fedavg")
    for name, value in plain.weights.items():
        torch.testing.assert_close(run.weights[name], value / 2)


# a second act


class HookRefine(Part):
    """The first `asked` clients train once more and go where the message says."""

    asked: int = 2
    shift: float = 0.01

    def queries(self, weights: Tensor, task: TaskInfo) -> dict[str, fl.Query]:
        return {"again": fl.Query(message={"shift": torch.zeros(2)}, trains=True)}

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"acts": torch.zeros(())}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"refined": torch.zeros(())}

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"refined": torch.zeros(()), "steps": torch.zeros(3)}

    def after_training(self, client: ClientContext) -> None:
        client.upload["refined"] = torch.zeros(())

    def after_uploads(self, server: ServerContext) -> None:
        server.ask("again", {"shift": torch.tensor([self.shift, 1.0])}, server.cohort[: self.asked])

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        client.train(fl.TrainSpec((fl.Phase(1),)))
        client.weights.add_(message["shift"].prod())
        client.state["acts"] = client.state["acts"] + 1
        client.upload["refined"] = torch.ones(())

    def after_aggregation(self, server: ServerContext) -> None:
        server.state["refined"] = torch.stack(list(server.extras("refined"))).sum()
        server.state["steps"] = torch.tensor(server.steps, dtype=torch.float)


def refined(p: Problem, asked: int, shift: float, loss: Callable[[Weights], Loss] = lambda _: cross_entropy) -> Weights:
    w = p.initial
    for t, cohort in p.rounds:
        rows = []
        for place, k in enumerate(cohort):
            row = p.local(w, t, k, loss(w))
            if place < asked:
                row = add(p.local(row, t, k, loss(w), batches=iter([p.data[k]])), shift)
            rows.append(row)
        w = mean(rows, p.shares(cohort))
    return w


@pytest.mark.parametrize("asked", [0, 2, 3])
def test_clients_that_are_asked_again_upload_anew(asked: int) -> None:
    run = train(f"hookrefine(asked={asked})", workers=2)
    p = problem(run)
    agree(run, refined(p, asked, 0.01))
    kept = checkpoint(run)
    assert kept["server.hookrefine.refined"] == asked
    assert kept["server.hookrefine.steps"].tolist() == [4.0] * asked + [3.0] * (3 - asked)
    for k, remembered in memories(run).items():
        assert remembered["hookrefine.acts"] == sum(k in cohort[:asked] for cohort in p.cohorts)


def test_a_second_act_is_counted_in_bytes() -> None:
    up, message = MODEL_BYTES + 4, 2 * 4
    run = train("hookrefine(asked=2)")
    assert {line["bytes_down"] for line in run.rounds} == {3 * MODEL_BYTES + 2 * message}
    assert {line["bytes_up"] for line in run.rounds} == {3 * up + 2 * up}


def test_in_a_second_act_the_round_still_begins_with_the_broadcast() -> None:
    """FedProx pulls to the broadcast weights, not to those that were uploaded before."""
    run = train("prox(mu=5) + hookrefine", lr=0.02)

    def near(w_g: Weights) -> Loss:
        def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(w, x, y) + 5 / 2 * sum((w[n] - w_g[n]).square().sum() for n in w)

        return loss

    agree(run, refined(problem(run), 2, 0.01, near))


def test_a_second_act_has_the_clients_own_head() -> None:
    run = train("hookrefine(asked=3, shift=0) + fedper", momentum=0.0)  # four steps, with a break after three
    w, heads = reference.fedper(problem(train("fedper", momentum=0.0, epochs=4)))
    agree(run, w)
    for k, remembered in memories(run).items():
        torch.testing.assert_close(remembered["personal"].double(), flat(heads[k], HEAD), rtol=0, atol=1e-5)


class HookOneByOne(Part):
    """Every client gets a message of its own, in as many acts."""

    def queries(self, weights: Tensor, task: TaskInfo) -> dict[str, fl.Query]:
        return {"again": fl.Query(message={"to": torch.zeros(())}, trains=True)}

    def after_uploads(self, server: ServerContext) -> None:
        for k in list(server.cohort):
            server.ask("again", {"to": torch.tensor(float(k))}, [k])

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        client.weights.fill_(float(message["to"]))


def test_each_client_may_be_sent_a_message_of_its_own() -> None:
    run = train("hookonebyone", rounds=1)
    p = problem(run)
    expected = sum(share * k for share, k in zip(p.shares(p.cohorts[0]), p.cohorts[0], strict=True))
    assert all(torch.allclose(value, torch.tensor(expected).float()) for value in run.weights.values())
    assert run.rounds[0]["bytes_down"] == 3 * (MODEL_BYTES + 4)


class HookFails(Part):
    """Sends nonsense from some clients, in training or in a second act."""

    training: tuple[int, ...] = ()
    acting: tuple[int, ...] = ()

    def queries(self, weights: Tensor, task: TaskInfo) -> dict[str, fl.Query]:
        return {"again": fl.Query(message={"bad": torch.zeros(())}, trains=True)}

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"here": torch.zeros(())}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"extra": torch.zeros(())}

    def after_training(self, client: ClientContext) -> None:
        client.state["here"] = torch.ones(())
        bad = client.samples in self.training
        client.upload["extra"] = torch.tensor(float("nan" if bad else 1))

    def after_uploads(self, server: ServerContext) -> None:
        for k, samples in list(zip(server.cohort, server.samples, strict=True)):
            server.ask("again", {"bad": torch.tensor(float(samples in self.acting))}, [k])

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        client.weights.div_(1 - message["bad"])


def losing(training: Sequence[int] = (), acting: Sequence[int] = (), **fields: Any) -> tuple[Run, Problem]:
    """Clients are told apart by the number of their samples."""
    p = problem(train("fedavg", rounds=1, fraction=1.0))
    sizes = [len(y) for _, y in p.data]
    assert len(set(sizes)) == len(sizes)
    part = HookFails(training=tuple(sizes[k] for k in training), acting=tuple(sizes[k] for k in acting))
    return train(part, rounds=1, fraction=1.0, workers=2, **fields), p


def survivors(p: Problem, lost: Sequence[int]) -> Weights:
    kept = [k for k in range(5) if k not in lost]
    return mean([p.local(p.initial, 1, k, cross_entropy) for k in kept], p.shares(kept))


def test_a_client_whose_second_upload_is_nonsense_is_lost_and_the_round_goes_on() -> None:
    run, p = losing(training=[0], acting=[2, 3])
    (line,) = run.rounds
    assert line["lost"] == 3
    assert line["lost_clients"] == {
        "0": "hookfails.extra is not finite",
        "2": "w is not finite",
        "3": "w is not finite",
    }
    agree(run, survivors(p, [0, 2, 3]))
    assert set(memories(run)) == {1, 4}


def test_a_run_stops_where_second_acts_lose_the_last_of_a_rounds_clients() -> None:
    with pytest.raises(FedloomError, match=r"round 1: all 5 uploads are lost.*client 0: hookfails.extra is not finite"):
        losing(training=[0, 1], acting=[2, 3, 4])
    with pytest.raises(FedloomError, match=r"round 1: 2 of 5 uploads arrived, deploy.min_cohort is 3"):
        losing(acting=[2, 3, 4], deploy={"min_cohort": 3})


def test_a_round_whose_clients_are_all_lost_leaves_the_weights_as_they_were() -> None:
    run, _ = losing(training=[0, 1], acting=[2, 3, 4], deploy={"min_cohort": 0})
    assert run.rounds[0]["lost"] == 5
    assert distance(run) == 0


# teachers


class HookLast(Part):
    """Keeps logits near those of the client's own last model, as MOON's second teacher: the whole storage is remembered."""

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"last": task.initial.clone()}

    def regularizer(self, batch: Batch, client: ClientContext) -> Tensor:
        last, sent = client.teacher(batch, "last"), client.teacher(batch)
        assert not last.logits.requires_grad
        return (batch.logits - last.logits).square().mean() - 0.5 * (batch.features - sent.features).square().mean()

    def after_training(self, client: ClientContext) -> None:
        client.state["last"] = client.storage


@pytest.mark.parametrize("rest", ["fedavg", "babu", "fedper"])
def test_a_part_may_be_taught_by_weights_that_it_remembers(rest: str) -> None:
    run = train(f"hooklast + {rest}", rounds=4)
    p = problem(run)
    w, last = p.initial, [p.initial] * 5
    assert any(sum(k in cohort for cohort in p.cohorts) > 1 for k in range(5))

    def loss(w: Weights, x: Tensor, y: Tensor, own: Weights, sent: Weights) -> Tensor:
        away = (features(w, x) - features(sent, x)).square().mean()
        return cross_entropy(w, x, y) + (logits(w, x) - logits(own, x)).square().mean() - 0.5 * away

    trained = BODY if rest == "babu" else None
    kept = HEAD if rest == "fedper" else ()
    for t, cohort in p.rounds:
        for k in cohort:
            mine = {**w, **{name: last[k][name] for name in kept}}
            last[k] = p.local(mine, t, k, partial(loss, own=last[k], sent=w), trained)
        w = {**mean([last[k] for k in cohort], p.shares(cohort)), **{name: w[name] for name in kept}}
    agree(run, w)
    for k, remembered in memories(run).items():
        torch.testing.assert_close(remembered["hooklast.last"].double(), flat(last[k]), rtol=0, atol=1e-5)


class HookLate(Part):
    """Asks for the teacher only when training is over."""

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"taught": torch.zeros(64), "own": torch.zeros(64)}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"taught": torch.zeros(64), "own": torch.zeros(64)}

    def after_training(self, client: ClientContext) -> None:
        for batch in client.iterate():
            client.upload["taught"] += client.teacher(batch).features.sum(0) / client.samples
            client.upload["own"] += batch.features.sum(0) / client.samples

    def after_aggregation(self, server: ServerContext) -> None:
        for name in ("taught", "own"):
            (server.state[name],) = server.extras(name)


def test_the_global_teacher_is_what_was_broadcast_whenever_it_is_asked() -> None:
    run = train("hooklate", clients=1, fraction=1.0, split="iid", rounds=1)
    p, kept = problem(run), checkpoint(run)
    final = reference.read(run.path / "final.safetensors")
    for name, w in (("taught", p.initial), ("own", final)):
        expected = features(w, p.data[0][0]).mean(0)
        torch.testing.assert_close(kept[f"server.hooklate.{name}"].double(), expected, rtol=0, atol=1e-5)


# personalize


class HookPersonal(Part):
    """Two epochs of the head before the plain fine-tuning."""

    def personalize(self, client: ClientContext) -> None:
        client.train(fl.TrainSpec((fl.Phase(2, ("head",)),), lr=0.5))


def test_a_client_may_prepare_itself_before_it_is_fine_tuned() -> None:
    fields = {"split": "shards:2", "rounds": 1}
    runs = {text: train(text, **fields) for text in ("hookpersonal", "fedavg")}
    with_it, without = (fl.personalize(run, epochs=1, lr=1e-9) for run in runs.values())
    assert with_it.global_accuracy == without.global_accuracy == without.accuracy[0]
    assert with_it.personal["mean"] > without.personal["mean"] + 0.2
    assert with_it.accuracy[0] == with_it.accuracy[1] == runs["hookpersonal"].clients[-1]["personal_accuracy"]


class HookAdapt(Part):
    """One gradient step of all that is shared, as Per-FedAvg adapts."""

    def personalize(self, client: ClientContext) -> None:
        client.weights.sub_(client.gradient_of(), alpha=0.5)


def test_adapting_does_not_depend_on_what_a_lane_tuned_before() -> None:
    run = {workers: train("hookadapt", split="shards:2", rounds=1, workers=workers) for workers in (1, 3)}
    outcome = {workers: fl.personalize(run[workers], part="head", epochs=1, lr=1e-9).accuracy for workers in run}
    assert outcome[1] == outcome[3]
    assert sum(outcome[1][0]) > sum(run[1].clients[-1]["accuracy"]) + 0.5  # type: ignore[arg-type]


# what is said when a part does what it must not


class HookUndeclared(Part):
    def after_training(self, client: ClientContext) -> None:
        client.upload["more"] = client.weights


class HookShape(Part):
    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"kept": torch.zeros(3)}

    def after_training(self, client: ClientContext) -> None:
        client.state["kept"] = torch.zeros(4)


class HookForgets(Part):
    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"kept": torch.zeros(3)}

    def after_aggregation(self, server: ServerContext) -> None:
        del server.state["kept"]


class HookBlowsUp(Part):
    def aggregate(self, server: ServerContext) -> Tensor:
        return server.weights / 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hookundeclared", "hookundeclared: upload has no 'more'; declared are: none"),
        ("hookshape", "hookshape: client state 'kept' has shape (3,), not (4,)"),
        ("hookforgets", "hookforgets: server state 'kept' is declared for the whole run and cannot be removed"),
        ("hookblowsup", "the weights are no longer finite after aggregation in round 1; lower lr or clip gradients"),
    ],
)
def test_a_part_that_breaks_its_word_is_told_so(text: str, said: str) -> None:
    with pytest.raises(FedloomError) as caught:
        train(text, rounds=1)
    assert said in str(caught.value)


# what a part sees


def test_a_part_sees_only_what_is_shared() -> None:
    sizes: dict[str, Any] = {}

    class HookSizes(Part):
        def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
            sizes["memory"] = len(weights)
            return {}

        def after_aggregation(self, server: ServerContext) -> None:
            sizes["weights"] = len(server.weights)
            sizes["uploads"] = {len(row) for row in server.uploads}

    train("hooksizes + babu", rounds=1)
    assert sizes == {"memory": BODY_BYTES // 4, "weights": BODY_BYTES // 4, "uploads": {BODY_BYTES // 4}}


def test_every_part_of_fedloom_that_could_train_on_says_how_much() -> None:
    """So that the server knows how many steps a client takes."""
    hooks: tuple[Literal["after_training"], Literal["answer"]] = ("after_training", "answer")
    found = {
        (part.name, hook): part.extra_training(hook) for part in fedloom_parts() for hook in hooks if part.defines(hook)
    }
    assert len(found) > 8
    assert None not in found.values(), found
