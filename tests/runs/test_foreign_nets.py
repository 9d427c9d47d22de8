"""Runs of nets that are given as objects, from the first round to the personal model, in other processes too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from foreign_nets import Conv, ConvHead
from torch import nn

import fedloom as fl
from fedloom.cli.main import main
from fedloom.io.files import read_tensors

torch.set_num_threads(1)
TINY = {"clients": 5, "fraction": 0.4, "rounds": 3, "workers": 1, "eval_every": 0, "lr": 0.03}

SCRIPT = """
import sys
import torch
from torch import nn
import fedloom as fl

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.out = nn.Linear(8 * 36, 10)
    def forward(self, x):
        return {"logits": self.out(self.bn(self.conv(x)).relu().flatten(1))}

torch.manual_seed(5)
fl.run(model=Mine(), clients=10, fraction=0.5, rounds=int(sys.argv[2]), workers=1, lr=0.03, method="scaffold",
       checkpoint_seconds=0, out=sys.argv[1])
"""


pytestmark = pytest.mark.usefixtures("own_cache")


def command(*arguments: str) -> int | str | None:
    """The exit code of a command, carried out in this process."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_an_instance_trains_from_its_own_weights_for_any_number_of_workers() -> None:
    torch.manual_seed(0)
    net = Conv()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    one = fl.run(model=net, out="one", **TINY)
    two = fl.run(model=net, out="two", **{**TINY, "workers": 2})
    assert one.summary["digest"] == two.summary["digest"]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    initial, final = (read_tensors(Path("one") / f"{name}.safetensors")[0] for name in ("initial", "final"))
    for name, value in before.items():
        ours = f"head.{name[11:]}" if name.startswith("classifier.") else f"body.{name}"
        if ours in initial:
            assert torch.equal(initial[ours], value)
    assert torch.equal(final["body.fixed.weight"], before["fixed.weight"])
    assert torch.equal(final["body.mask"], before["mask"])
    assert not torch.equal(final["body.conv.weight"], before["conv.weight"])
    assert one.recipe.model.startswith("module:Conv-")


def test_the_sum_of_a_fedavg_round_on_an_instance_is_a_plain_loop(tmp_path: Path) -> None:
    """One client, one epoch of full batches: SGD by torch on the module itself."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
    fields = {
        "clients": 1,
        "split": "iid",
        "fraction": 1.0,
        "rounds": 2,
        "batch": "full",
        "momentum": 0.0,
        "workers": 1,
    }
    fl.run(model=net, out="run", lr=0.1, **fields)
    from fedloom.data.dataset import load

    dataset = load("digits")
    x, y = dataset.pipeline()(dataset.train_x, None), dataset.train_y
    for _ in range(2):
        net.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for weight in net.parameters():
                weight -= 0.1 * weight.grad
    final = read_tensors(Path("run/final.safetensors"))[0]
    torch.testing.assert_close(final["body.1.weight"], net[1].weight.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(final["head.weight"], net[3].weight.detach(), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_killed_run_of_a_scripts_class_is_resumed_by_the_command_line_to_the_same_bits(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    straight = subprocess.Popen([sys.executable, str(script), "straight", "8"])
    child = subprocess.Popen([sys.executable, str(script), "killed", "8"], start_new_session=True)
    rounds = Path("killed/rounds.jsonl")
    deadline = time.time() + 60
    while time.time() < deadline and not (rounds.exists() and rounds.read_bytes().count(b"\n") >= 2):
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert not Path("killed/summary.json").exists()
    resumed = subprocess.run(
        [sys.executable, "-m", "fedloom", "run", "--resume", "killed"], capture_output=True, text=True
    )
    assert resumed.returncode == 0, resumed.stderr
    assert straight.wait() == 0
    assert fl.Run("killed").summary["digest"] == fl.Run("straight").summary["digest"]
    assert command("personalize", "killed", "--epochs", "1") == 0
    compared = command("compare", "--methods", "fedavg; fn", "--model", fl.Run("killed").recipe.model, "--clients", "5",
                       "--rounds", "1", "--workers", "1", "--lr", "0.03", "--out", "compared")  # fmt: skip
    assert compared == 0
    assert command("export", "killed", "--out", "net.pt2") == 0


def test_the_head_of_an_instance_may_be_named() -> None:
    run = fl.run(model=ConvHead(), head="last", out="run", **TINY)
    assert run.recipe.model.endswith("(head=last)")
    with pytest.raises(fl.FedloomError, match=r"method: .*fn"):
        fl.run(model=ConvHead(), head="last", method="fn", out="other", **TINY)
    assert not Path("other").exists()


def test_a_module_that_cannot_be_stored_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(fl.FedloomError, match="write a function"):
        fl.run(model=Conv(act=lambda x: x), out="run", **TINY)
    assert not Path("run").exists()


def test_compare_takes_an_instance() -> None:
    comparison = fl.compare("fedavg; fn", model=Conv(), out="both", **TINY)
    assert len(list(Path("both").rglob("summary.json"))) == 2
    assert comparison is not None
