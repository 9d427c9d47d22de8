"""personalize, adopt and export as commands: what they print, where they write, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import fedloom as fl
from fedloom.cli.main import main
from fedloom.io.files import read_tensors

FIELDS = {"clients": 5, "rounds": 2, "workers": 1, "eval_every": 0}


def call(capsys: pytest.CaptureFixture[str], text: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(text.split())
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_a_table_of_many_tunings_is_printed_whole_however_narrow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    runs = {name: fl.run(FIELDS, method=name, out=name) for name in ("fedavg", "fedbabu")}
    code, out, err = call(capsys, "personalize fedavg fedbabu --part full,head --epochs 1,3 --lr 0.1,0.01")
    assert (code, err) == (0, "")
    for name, run in runs.items():
        for part in ("full", "head"):
            for lr in (0.1, 0.01):
                found = json.loads((run.path / "personal" / f"{part}-3-{lr:g}.json").read_text())
                means = [f"{100 * found['curve'][epoch]['mean']:.1f}" for epoch in (0, 1, 3)]
                (row, spread) = [
                    line.split() for line in out.splitlines() if line.split()[:3] == [name, part, f"{lr:g}"]
                ]
                assert row[3:] == means
                before, after = (f"{100 * found[key]['mean']:.1f}" for key in ("unseen_before", "unseen_after"))
                assert spread[-3:] == [before, "→", after]
    assert "…" not in out.replace("0 … 100 %", "")
    code, _, err = call(capsys, "personalize fedavg --lr 0.1,fast")
    assert (code, err) == (2, "error: lr: cannot read '0.1,fast'; write numbers separated by commas\n")


def test_a_few_clients_may_stand_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    fl.run(FIELDS, out="x")
    assert call(capsys, "personalize x --epochs 1 --clients 2")[0] == 0
    rows = json.loads(Path("x/personal/full-1-0.001-of2.json").read_text())["clients"]
    assert len(rows) == 5 and sum(row[0] is not None for row in rows) == 2
    everybody = fl.personalize("x", epochs=1)
    for client, row in enumerate(rows):
        if row[0] is not None:
            assert row == [column[client] for column in everybody.accuracy]
    assert call(capsys, "personalize x --clients 0")[2] == "error: clients: must be 1 or more (got 0)\n"


def test_a_new_client_is_adopted_and_its_model_taken_away(capsys: pytest.CaptureFixture[str]) -> None:
    fl.run(FIELDS, out="x")
    bunch = load_digits()
    chosen = np.isin(bunch.target, (1, 2))
    np.savez("new.npz", x=bunch.images[chosen].astype(np.uint8), y=bunch.target[chosen])
    code, out, _ = call(capsys, "adopt x --data new.npz --epochs 3 -o mine.safetensors")
    found = fl.adopt("x", "new.npz", epochs=3)
    assert code == 0
    assert f"{100 * (found.before or 0):.1f}" in out and f"{100 * (found.after or 0):.1f}" in out
    assert "held out: every fifth of its samples" in out and "model: mine.safetensors" in out
    code, out, _ = call(capsys, "adopt x --data new.npz --train-on-all")
    assert code == 0 and out.count("unknown") == 2
    code, out, _ = call(capsys, "export x --weights mine.safetensors -o mine.pt2")
    assert code == 0 and Path("mine.pt2").exists()
    assert "pixels from 0 to 16" in out and "facts: mine.pt2.json" in out
    for words, said in (
        ("adopt x --data x/partition.npz", "error: data: "),
        ("export x -o mine.pth", "error: out: mine.pth must end in .pt2 or .onnx"),
        ("export x --client 9 -o nine.pt2", "error: client: the run has clients 0 to 4 (got 9)"),
    ):
        code, _, err = call(capsys, words)
        assert code == 2 and err.startswith(said) and err.count("\n") == 1
    assert not Path("nine.pt2").exists()


def test_tunings_new_clients_and_exports_show_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    run = fl.run(
        clients=5, rounds=2, workers=1, model="linear", metrics="loss,macro_f1,accuracy", method="fedper", out="x"
    )
    code, told, _ = call(capsys, "personalize x --epochs 1 --lr 0.01")
    assert code == 0
    for title in ("cross-entropy loss on each client's own", "macro F1 in % on each", "accuracy in % on each"):
        assert title in " ".join(told.split())
    assert f"{run.summary['personal_loss']['worst']:.3f}" in told  # of a loss, the highest
    bunch = load_digits()
    np.savez("new.npz", x=bunch.images[:100].astype(np.uint8), y=bunch.target[:100])
    code, told, _ = call(capsys, "adopt x --data new.npz --epochs 1")
    assert code == 0
    adopted = fl.adopt("x", "new.npz", epochs=1, out="other.safetensors")
    assert adopted.metric == "loss" and list(adopted.others) == ["macro_f1", "accuracy"]
    assert f"{adopted.after:.3f}" in told and f"{100 * adopted.others['accuracy'][1][-1]:.1f}" in told
    metadata = read_tensors(Path("other.safetensors"))[1]
    assert metadata["loss_after"] == str(adopted.after) and "accuracy_before" in metadata
    facts = fl.export("x", "client.pt2", client=2).facts
    for name in run.metrics:
        assert facts[f"{name}_on_its_test_images"] == pytest.approx(run.clients[-1][f"personal_{name}"][2])


def test_the_table_of_a_run_has_a_column_per_metric(capsys: pytest.CaptureFixture[str]) -> None:
    fields = "--clients 10 --split shards:1 --rounds 1 --model linear --workers 1"
    code, told, _ = call(capsys, f"run {fields} --metrics loss,auroc --name x")
    assert code == 0
    summary = fl.Run(Path("runs/x")).summary
    assert "cross-entropy loss   AUROC in %" in told and f"{summary['test_loss']:.3f}" in told
    assert "global model by class" in told and "accuracy" not in told
    assert "note: auroc of the global model is undefined for 10 clients" in told
