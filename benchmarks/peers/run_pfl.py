"""FedAvg in pfl-research: its simulated backend and in-memory data set; under torchrun it shards the cohort itself."""

import time
from itertools import pairwise

import torch
from job import LR, MOMENTUM, Assignment, report
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    """pfl asks the module for its own loss and metrics."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.inner(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        with torch.no_grad():
            return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.marks = [time.perf_counter()]

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        self.marks.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    job = Assignment.read()
    net = Net(job.build())
    users = FederatedDataset(
        lambda which: PyTorchTensorDataset(job.client(which)),
        get_user_sampler("minimize_reuse", torch.randperm(job.clients).tolist()),
    )
    model = PyTorchModel(
        net,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    rounds = NNAlgorithmParams(
        central_num_iterations=job.rounds,
        evaluation_frequency=job.rounds,  # pfl always evaluates in its first iteration: our warm-up
        train_cohort_size=job.cohort,
        val_cohort_size=None,
    )
    local = NNTrainHyperParams(local_num_epochs=job.epochs, local_learning_rate=LR, local_batch_size=job.batch)
    backend = SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()])
    job.train  # noqa: B018  (loading is start-up, not part of a round)
    clock = Clock()
    FederatedAveraging().run(rounds, backend, model, local, callbacks=[clock], send_metrics_to_platform=False)
    if distributed.global_rank == 0:
        seconds = [b - a for a, b in pairwise(clock.marks)]
        report("pfl", seconds, net, job.accuracy(net.inner))


if __name__ == "__main__":
    main()
