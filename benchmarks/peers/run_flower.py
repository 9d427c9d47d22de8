"""FedAvg in Flower's simulation: one Ray actor for each process, the strategy that comes with Flower."""

import time
from itertools import pairwise

import flower_client
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Assignment, report


def main() -> None:
    job = Assignment.read()
    net = job.build()
    marks: list[float] = []
    server = ServerApp()

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=job.cohort / job.clients,
            fraction_evaluate=0.0,
            min_train_nodes=job.cohort,
            min_available_nodes=job.clients,
        )
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(net.state_dict()),
            num_rounds=job.rounds,
            evaluate_fn=lambda _round, _arrays: marks.append(time.perf_counter()),  # only looks at the clock
        )
        net.load_state_dict(result.arrays.to_torch_state_dict())

    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=job.clients,
        backend_config={
            "init_args": {"num_cpus": job.processes, "_temp_dir": job.scratch},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    report("flwr", [b - a for a, b in pairwise(marks)], net, job.accuracy(net))


if __name__ == "__main__":
    main()
