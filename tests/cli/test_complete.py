"""Completion, asked as bash asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.cli.main import main


def completed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, typed: str) -> list[str]:
    monkeypatch.setenv("_FEDLOOM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    before = typed.partition('"')[0] if '"' in typed else typed.rpartition(" ")[0]
    monkeypatch.setenv("COMP_CWORD", str(len(before.split())))
    monkeypatch.setattr("sys.argv", ["fedloom"])
    monkeypatch.setattr("__main__.__package__", "", raising=False)  # `python -m pytest` would be part of the name
    with pytest.raises(SystemExit):
        main()
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("fedloom comp", ["compare"]),
        ("fedloom run --method sca", ["scaffold"]),
        ('fedloom run --method "fn + pro', ["fn + prox"]),
        ("fedloom run --model mobilenetv", ["mobilenetv2"]),
        ("fedloom run --split iid+no", ["iid+noise"]),
        ("fedloom run --data breast", ["breast_cancer"]),
        ("fedloom run --metrics accuracy,ma", ["accuracy,macro_f1"]),
        ("fedloom run --protocol fednn-dig", ["fednn-digit"]),
        ("fedloom run --optimizer adamw", ["adamw"]),
        ("fedloom run --set data.val", ["data.validation=", "data.validation_from="]),
        ("fedloom reproduce fnrfl/", ["fnrfl/table2", "fnrfl/table7"]),
        ("fedloom list spl", ["splits"]),
        ("fedloom list methods feddr", ["feddrplus"]),
        ("fedloom recipe momen", ["momentum"]),
        ("fedloom flower rost", ["roster"]),
    ],
)
def test_values_are_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, typed: str, values: list[str]
) -> None:
    assert completed(capsys, monkeypatch, typed) == values


def test_run_folders_and_recipes_are_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("runs/a", "runs/sweep/fn/seed0"):
        Path(name).mkdir(parents=True)
        Path(name, "recipe.yaml").write_text("")
    Path("mine.yaml").write_text("")
    assert completed(capsys, monkeypatch, "fedloom analyze ") == ["runs/a", "runs/sweep/fn/seed0", "runs/"]
    assert completed(capsys, monkeypatch, "fedloom run --resume runs/s") == ["runs/sweep/fn/seed0", "runs/sweep/"]
    assert "mine.yaml" in completed(capsys, monkeypatch, "fedloom run m")
