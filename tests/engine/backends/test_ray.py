"""Workers on a Ray cluster: two nodes with a core each, real processes on loopback, the bits of local workers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import Notes, check_whole
from test_spawn import DIES

import fedloom as fl
from fedloom.engine.backends import select as where

pytestmark = [
    pytest.mark.ray,
    pytest.mark.usefixtures("forget_parts"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]
FIELDS: dict[str, Any] = {"clients": 5, "fraction": 1.0, "rounds": 2, "eval_every": 0}
HELD = {"name": "digits", "validation": 0.1, "public": 0.1}
NET = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5)), nn.Linear(32, classes)
"""


def images(folder: Path, seed: int) -> Path:
    """A folder with toy.npz."""
    folder.mkdir()
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, 256, (60, 8, 8, 1), dtype=np.uint8), np.arange(60) % 10
    np.savez(folder / "toy.npz", train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:])
    return folder


@pytest.fixture(scope="module", autouse=True)
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two nodes; the second has other images under the same name."""
    root = tmp_path_factory.mktemp("machines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
        patch.setenv("FEDLOOM_DATA", str(images(root / "here", 0)))
        patch.setenv("PYTHONPATH", str(Path(fl.__file__).parents[1]))
        from ray.cluster_utils import Cluster  # reads how to authenticate when it is imported

        node = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "node_ip_address": "127.0.0.2"})
        patch.setenv("FEDLOOM_DATA", str(images(root / "there", 1)))
        cluster.add_node(**node, node_ip_address="127.0.0.3")
        patch.setenv("FEDLOOM_DATA", str(root / "here"))
        patch.setenv("RAY_ADDRESS", cluster.address)
        try:
            with where.session():  # actors stay from test to test
                yield
        finally:
            cluster.shutdown()


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "split": "shards:2+noise:0.1", "model": "net.py:net", "eval_every": 1},
        {"method": "scaffold + feddf(steps=3)", "data": HELD},
        {"method": "fnr", "data": HELD, "analyze_every": 2},
        {"method": "fedpac"},
        {"method": "fedrep(head_epochs=1)"},
        {"method": "sphere"},
        {"method": "scaffold", "vmap": 2},
        {"method": "fedavg", "optimizer": {"name": "adam", "keep": True}, "steps": "2..6", "lr": 0.003},
    ],
    ids=["fedavg", "scaffold-feddf", "fnr", "fedpac", "fedrep", "sphere", "vmap", "adam"],
)
def test_actors_on_two_nodes_give_the_bits_of_local_workers(fields: dict[str, Any]) -> None:
    Path("net.py").write_text(NET)
    notes = Notes()
    run = fl.run({**FIELDS, **fields}, workers="ray", name="ray", callbacks=[notes])
    like = fl.run({**FIELDS, **fields}, workers=2, name="local")
    assert notes.said == ["workers on Ray: 2; nodes: 2"]
    assert (run.recipe.workers, run.summary["workers"], run.summary["workers_replaced"]) == ("ray", 2, 0)
    check_whole(run, like)
    assert {path.name for path in run.path.rglob("*")} == {path.name for path in like.path.rglob("*")}
    tuned = [fl.personalize(found, "full", 1, 0.1) for found in (run, like)]
    assert tuned[0].to_json() == tuned[1].to_json()


def test_an_actor_that_is_killed_is_replaced_and_its_client_runs_again(straight: Callable[..., fl.Run]) -> None:
    """Its part comes from a file, whose text travels to the actors."""
    Path("dies.py").write_text(DIES)
    place = Path("pids").absolute()
    run = fl.run(FIELDS, method=f"scaffold + dies(unless={place})", parts=["dies.py"], workers="ray")
    assert (run.summary["workers_replaced"], run.summary["lost"]) == (1, 0)
    check_whole(run, straight(**FIELDS, method="scaffold"))


def test_a_machine_with_other_images_is_refused_and_nothing_is_written() -> None:
    with pytest.raises(fl.FedloomError, match=r"data: toy on .* holds other samples .* FEDLOOM_DATA is .*there"):
        fl.run(data="toy", split="iid", clients=2, rounds=1, workers="ray")
    assert not Path("runs").exists()


def test_a_part_that_actors_cannot_import_is_refused_and_nothing_is_written() -> None:
    class Jotted(fl.Part):
        pass

    with pytest.raises(fl.FedloomError, match=r"workers: a worker on .* cannot be built: .*jotted"):
        fl.run(FIELDS, method="jotted", workers="ray")
    Jotted.__module__ = "__main__"
    with pytest.raises(fl.FedloomError, match=r"cannot see the part 'jotted' .* name that in `parts`"):
        fl.run(FIELDS, method="jotted", workers="ray")
    assert not Path("runs").exists()


def test_an_interrupted_run_is_resumed_by_local_workers_and_back() -> None:
    class Stops(Notes):
        def client_done(self, done: int) -> None:
            if self.rounds:
                raise KeyboardInterrupt

    fields = {**FIELDS, "rounds": 3, "method": "fedrep(head_epochs=1)", "checkpoint_seconds": 0}
    for turn, workers in enumerate(("ray", 2)):
        with pytest.raises(fl.FedloomError, match=f"stopped after round {turn + 1}"):
            if turn:
                fl.run(resume="runs/moved", workers=workers, callbacks=[Stops()])
            else:
                fl.run(fields, name="moved", workers=workers, callbacks=[Stops()])
    run = fl.run(resume="runs/moved", workers="ray")
    check_whole(run, fl.run(fields, workers=2, name="local"))


def test_an_address_where_no_ray_is_told_in_a_sentence() -> None:
    """In a process of its own, which belongs to no cluster yet."""
    command = [sys.executable, "-m", "fedloom", "run", "--workers", "ray", "--clients", "5", "--rounds", "1"]
    done = subprocess.run(
        command, env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: workers: Ray cannot be reached at 127.0.0.1:1")
    assert not Path("runs").exists()
