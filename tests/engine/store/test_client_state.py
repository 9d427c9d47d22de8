"""What clients remember: only for those who took part, on disk when there is too much of it."""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders import check_whole
from processes import Child
from torch import Tensor

import fedloom as fl
from fedloom.engine.store.client_state import ClientStateStore
from fedloom.engine.tensor_layout import TensorLayout

FIRST = {"control": torch.full((10,), 0.5), "count": torch.tensor(7)}


def memory(rows: float, folder: str = "rows") -> ClientStateStore:
    """With room for so many rows."""
    layout = TensorLayout(FIRST)
    Path(folder).mkdir(exist_ok=True)
    return ClientStateStore(layout, layout.row(FIRST), Path(folder), rows * layout.nbytes)


def row(value: float) -> Tensor:
    return TensorLayout(FIRST).row({"control": torch.full((10,), value), "count": torch.tensor(int(value))})


def value(kept: ClientStateStore, client: int) -> float:
    views = kept.layout.views(kept.get(client))
    assert len(set(views["control"].tolist())) == 1
    return float(views["control"][0])


def files(folder: str = "rows") -> list[str]:
    return sorted(path.name.removesuffix(".safetensors") for path in Path(folder).iterdir())


def checkpoint(kept: ClientStateStore, round: int) -> dict[str, Tensor]:
    manifest = kept.checkpoint()
    kept.settle(round)
    return manifest


def test_a_client_that_never_took_part_has_the_first_values_and_no_row() -> None:
    kept = memory(5)
    assert value(kept, 3) == 0.5
    assert (len(kept), kept.in_ram, 3 in kept) == (0, 0, False)
    kept.put(3, row(2), round=1)
    assert (value(kept, 3), value(kept, 4)) == (2, 0.5)
    assert (len(kept), kept.in_ram, 3 in kept) == (1, 1, True)


def test_what_is_kept_is_a_copy() -> None:
    kept, given = memory(5), row(2)
    kept.put(3, given, round=1)
    given.zero_()
    assert value(kept, 3) == 2


def test_the_least_recently_used_rows_go_to_disk_and_come_back() -> None:
    kept = memory(2)
    for client in range(5):
        kept.put(client, row(client), round=1)
    assert (len(kept), kept.in_ram) == (5, 2)
    assert files() == [f"client-{client:06d}-round-000001" for client in (0, 1, 2)]
    assert [value(kept, client) for client in range(5)] == [0, 1, 2, 3, 4]
    assert kept.in_ram == 2
    kept.put(0, row(9), round=2)
    assert [value(kept, client) for client in range(5)] == [9, 1, 2, 3, 4]


@pytest.mark.parametrize("rows", [0.1, 1])
def test_at_least_one_row_stays_in_memory_however_small_the_budget(rows: float) -> None:
    kept = memory(rows)
    for client in range(3):
        kept.put(client, row(client), round=1)
    assert kept.in_ram == 1
    assert [value(kept, client) for client in range(3)] == [0, 1, 2]


def test_without_a_limit_nothing_goes_to_disk() -> None:
    kept = memory(math.inf)
    for client in range(100):
        kept.put(client, row(client), round=1)
    assert kept.in_ram == 100
    assert not files()


def test_a_version_that_no_checkpoint_saw_is_removed_when_a_newer_one_is_written() -> None:
    kept = memory(1)
    for round in (1, 2, 3):
        kept.put(0, row(round), round)
        kept.put(1, row(10 + round), round)
    assert files() == ["client-000000-round-000003", "client-000001-round-000002"]


def test_files_live_as_long_as_one_of_the_last_two_checkpoints_speaks_of_them() -> None:
    kept = memory(10)
    kept.put(0, row(1), 1)
    kept.put(1, row(1), 1)
    first = checkpoint(kept, 1)
    kept.put(0, row(2), 2)
    checkpoint(kept, 2)
    assert files() == ["client-000000-round-000001", "client-000000-round-000002", "client-000001-round-000001"]
    kept.put(0, row(3), 3)
    third = checkpoint(kept, 3)
    assert files() == ["client-000000-round-000002", "client-000000-round-000003", "client-000001-round-000001"]
    assert first["clients"].tolist() == third["clients"].tolist() == [0, 1]
    assert (first["versions"].tolist(), third["versions"].tolist()) == ([1, 1], [3, 1])


def test_going_back_to_a_checkpoint_forgets_what_came_after_it() -> None:
    kept = memory(1)
    kept.put(0, row(1), 1)
    kept.put(1, row(1), 1)
    first = checkpoint(kept, 1)
    kept.put(0, row(2), 2)
    kept.put(2, row(2), 2)
    kept.put(1, row(2), 2)  # with room for one row, the others are on disk by now
    again = memory(1)
    again.restore(first, 1)
    assert [value(again, client) for client in range(3)] == [1, 1, 0.5]
    assert len(again) == 2
    assert files() == ["client-000000-round-000001", "client-000001-round-000001"]
    again.clear()
    assert ([value(again, client) for client in range(3)], files()) == ([0.5, 0.5, 0.5], [])


def test_a_tiny_budget_gives_the_same_bits_as_a_large_one(straight: Callable[..., fl.Run]) -> None:
    fields = {"clients": 10, "fraction": 0.5, "rounds": 5, "workers": 2, "eval_every": 0, "checkpoint_seconds": 0}
    for method in ("scaffold", "fedper"):
        check_whole(fl.run(fields, method=method, memory_mb=0.001), straight(**fields, method=method))


def test_a_tiny_budget_spills_while_the_run_goes() -> None:
    found: list[int] = []

    class Looks(fl.RunCallback):
        def round_ended(self, line: dict[str, Any]) -> None:
            found.append(len(files("runs/spilled/checkpoints/clients")))

    fields = {"clients": 5, "fraction": 1.0, "rounds": 3, "workers": 1, "method": "scaffold", "name": "spilled"}
    fl.run(fields, memory_mb=0.03, callbacks=[Looks()])  # room for one row, and no checkpoint before the end
    assert found[0] == 4
    assert max(found) == 5  # one version a client


def test_idle_clients_cost_no_memory() -> None:
    """A client's control is 3 kB here, so fifty thousand of them would need 150 MB."""
    generator = np.random.Generator(np.random.PCG64(0))
    x = generator.integers(0, 256, (100_000, 1, 1, 1), dtype=np.uint8)
    y = np.arange(100_000) % 10
    np.savez("many.npz", train_x=x, train_y=y, test_x=x[:1000], test_y=y[:1000])
    fields = {"data": "many.npz", "split": "iid", "rounds": 3, "workers": 1, "method": "scaffold", "eval_every": 0}
    fl.run(fields, clients=10, rounds=1)  # the images are in the cache now
    grown = {}
    for clients in (100, 50_000):

        def work(clients: int = clients) -> None:
            gc.collect()  # writes to pages that this process shares with its parent: later, they would count as grown
            before, highest = private_memory(), 0

            class Weighs(fl.RunCallback):
                def round_ended(self, line: dict[str, Any]) -> None:
                    nonlocal highest
                    highest = max(highest, private_memory())

            fl.run(fields, clients=clients, fraction=10 / clients, epochs=1, name=f"of-{clients}", callbacks=[Weighs()])
            Path(f"{clients}.json").write_text(json.dumps(highest - before))

        assert Child(work).wait() == 0
        grown[clients] = json.loads(Path(f"{clients}.json").read_text())
        run = fl.Run(Path(f"runs/of-{clients}"))
        assert all(len(line["cohort"]) == 10 for line in run.rounds)
        taken = {client for line in run.rounds for client in line["cohort"]}
        assert {int(name.split("-")[1]) for name in files(f"runs/of-{clients}/checkpoints/clients")} == taken
    assert grown[50_000] < grown[100] + 50e6


def private_memory() -> int:
    """Bytes that only this process holds."""
    text = Path(f"/proc/{os.getpid()}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) * 1024
