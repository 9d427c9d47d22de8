"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates cancel the drift of clients (option II).

    step:    g <- g - c_i + c
    client:  c_i+ = c_i - c + (w_g - w_i) / (K eta)
    server:  c <- c + |S|/N * mean over S of (c_i+ - c_i)

With heavy-ball momentum r, K steps move the weights by eta * a_K times a constant gradient, with a_K = [K - r (1 -
r^K) / (1 - r)] / (1 - r); dividing by K eta would make the controls about 1/(1-r) times too large. So K is replaced
by a_K, which is K at r = 0. eta is the learning rate of the round. The weights are averaged as the recipe says.
Controls cover the shared weights; statistics of normalizers are not controlled. Weight decay is added to the gradient
after the correction and thus becomes part of the control, as in the paper, which uses the whole movement.

After a query that trains (fnr), the control covers all steps of the round: the extra ones are corrected by the same
c_i and c, and c_i+ comes from the client's final upload. Extra steps start with zero momentum buffers, so K1 + K2
steps move the weights by a_K1 + a_K2, not by a_(K1+K2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedloom.methods.api.context import ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.methods.api.part import Part


def effective_steps(steps: int, momentum: float) -> float:
    """a_K: how far K steps with momentum go, in units of one step without."""
    if momentum == 0:
        return float(steps)
    r = momentum
    return float((steps - r * (1 - r**steps) / (1 - r)) / (1 - r))


def distance(segments: Sequence[int], momentum: float) -> float:
    """The same for all steps of a round: momentum buffers that begin at zero again begin a sum of their own."""
    return sum((effective_steps(steps, momentum) for steps in segments), 0.0)


class Scaffold(Part):
    """Control variates cancel client drift (option II, momentum-aware)."""

    paper = "Karimireddy et al. 2020, SCAFFOLD"
    work = "one to three vector operations per step"
    plain_sgd = "computes a client's gradient from its movement, learning rate and number of steps"
    sums = "equal"  # of the controls' changes

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"control": torch.zeros_like(weights)}

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"control": torch.zeros_like(weights)}

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"control": torch.zeros_like(weights)}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        return {"control": state["control"]}

    def correct_gradient(self, gradient: Tensor, client: ClientContext) -> None:
        gradient.add_(client.broadcast["control"]).sub_(client.state["control"])

    def extra_training(self, hook: str) -> tuple[()]:
        return ()  # no step on shared weights

    def after_training(self, client: ClientContext) -> None:
        c, c_i = client.broadcast["control"], client.state["control"]
        scale = client.lr * distance(client.segments, client.momentum)
        c_new = c_i - c + (client.global_weights - client.weights) / scale
        client.upload["control"] = c_new - c_i
        client.state["control"] = c_new

    def after_aggregation(self, server: ServerContext) -> None:
        changes = server.extras("control")
        for change in changes:  # |S|/N times the mean over S is the sum over N
            server.state["control"].add_(change, alpha=1 / server.task.clients)
