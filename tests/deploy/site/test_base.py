"""A frozen base is never sent: sites build it by themselves, and one that has another base does not join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedloom as fl
from fedloom import FedloomError

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')
pytest.importorskip("peft")

from federations import serve
from loopback import Loopback

pytestmark = pytest.mark.slow  # sites with models of transformers

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "dirichlet:0.5",
    "clients": 3,
    "model": "mlp",
    "rounds": 2,
    "lr": 0.05,
    "eval_every": 0,
    "deploy": {"timeout": 5, "join_timeout": 10},
}
BASE_BYTES = 4 * (64 * 64 + 64)


def sizes(sent: list[int]) -> Any:
    """Notes the size of every message that goes to a node."""

    def watch(grid: Loopback) -> None:
        push = grid.push_messages

        def pushed(messages: Any) -> list[str]:
            messages = list(messages)
            for message in messages:
                sent.append(sum(record.count_bytes() for record in message.content.array_records.values()))
            return push(messages)

        grid.push_messages = pushed  # type: ignore[method-assign]

    return watch


@pytest.fixture
def pretrained() -> str:
    run = fl.run({**FIELDS, "method": "central", "rounds": 1}, out="pretrained")
    return str((run.path / "final.safetensors").resolve())


@pytest.mark.parametrize("method", ["lora(rank=2)", "lora(rank=2) + fn + scaffold", "lora(rank=2) + fedper"])
def test_nodes_end_with_the_weights_of_a_run(method: str, pretrained: str, tmp_path: Path) -> None:
    fields = {**FIELDS, "method": method, "init": pretrained}
    alone, together = fl.run(fields, out=str(tmp_path / "alone")), serve(fields, tmp_path / "together")
    assert together.summary["digest"] == alone.summary["digest"] and together.summary["lost"] == 0
    assert together.rounds[-1]["bytes_up"] == alone.rounds[-1]["bytes_up"]


@pytest.mark.parametrize("with_file", [True, False])
def test_no_message_holds_the_base(with_file: bool, pretrained: str, tmp_path: Path) -> None:
    sent: list[int] = []
    fields = {**FIELDS, "method": "lora(rank=2)", **({"init": pretrained} if with_file else {})}
    serve(fields, tmp_path / "adapted", change=sizes(sent))
    adapters_and_head = 4 * (2 * (64 + 64) + 64 * 10 + 10)
    assert len(sent) > 6
    assert max(sent) < adapters_and_head + 3000 < BASE_BYTES  # tensors, and the headers of Flower's records
    sent.clear()
    serve({**FIELDS, "method": "fedavg"}, tmp_path / "plain", change=sizes(sent))
    assert max(sent) > BASE_BYTES


def test_a_site_stores_the_whole_initial_model(pretrained: str, tmp_path: Path) -> None:
    run = serve({**FIELDS, "method": "lora(rank=2)", "init": pretrained}, tmp_path / "x")
    (stored, *_) = sorted((tmp_path / "x").rglob("client-*/initial.safetensors"))
    at_site, at_server = load_file(stored), load_file(run.path / "initial.safetensors")
    assert set(at_site) == set(at_server) and all(torch.equal(at_site[n], at_server[n]) for n in at_site)


def when_asked(act: Any) -> Any:
    """Does something after the server is ready and before the first node answers."""

    def change(grid: Loopback) -> None:
        pull = grid.pull_messages

        def pulled(numbers: Any) -> Any:
            grid.pull_messages = pull  # type: ignore[method-assign]
            act()
            return pull(numbers)

        grid.pull_messages = pulled  # type: ignore[method-assign]

    return change


IMPATIENT = {"timeout": 2, "join_timeout": 2}


def test_a_site_with_another_file_does_not_join(pretrained: str, tmp_path: Path) -> None:
    def exchange() -> None:
        tensors = load_file(pretrained)
        save_file({**tensors, "body.1.bias": tensors["body.1.bias"] + 1}, pretrained)

    fields = {**FIELDS, "method": "lora(rank=2)", "init": pretrained, "deploy": IMPATIENT}
    with pytest.raises(FedloomError, match=r"cannot build the frozen base: init: .* is no longer what"):
        serve(fields, tmp_path / "x", change=when_asked(exchange))


def test_a_site_without_the_file_does_not_join(pretrained: str, tmp_path: Path) -> None:
    fields = {**FIELDS, "method": "lora(rank=2)", "init": pretrained, "deploy": IMPATIENT}
    with pytest.raises(FedloomError, match=r"cannot build the frozen base: init: .*final.safetensors"):
        serve(fields, tmp_path / "x", change=when_asked(Path(pretrained).unlink))


def test_a_site_that_initializes_another_base_does_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("net.py").write_text(
        "import os\n"
        "from torch import nn\n"
        "def net(shape, classes):\n"
        "    layer = nn.Linear(64, 8)\n"
        "    nn.init.constant_(layer.bias, float(os.environ['BIAS']))\n"
        "    return nn.Sequential(nn.Flatten(), layer), nn.Linear(8, classes)\n"
    )
    monkeypatch.setenv("BIAS", "0")
    fields = {**FIELDS, "method": "lora(rank=2)", "model": f"{Path('net.py').resolve()}:net", "deploy": IMPATIENT}
    with pytest.raises(FedloomError, match="builds another frozen base than the server's from the seed 0"):
        serve(fields, tmp_path / "x", change=when_asked(lambda: monkeypatch.setenv("BIAS", "1")))
