"""Settings that a tuning chose, on seeds that it never saw: what is run, and what the table says of it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from fedloom.cli.main import main
from fedloom.report.grid import sheets
from fedloom.report.page.content import content
from fedloom.studies.tune.chosen import ChosenSettings, Tuned, write
from fedloom.studies.tune.fresh import fresh

RECIPE = {"clients": 5, "rounds": 2, "model": "mlp(hidden=16)", "workers": 1, "eval_every": 0}


def chosen(method: str, total: str | None, **settings: Any) -> ChosenSettings:
    numbers = {"trials": 16, "stopped_early": 5, "diverged": 16 if total is None else 0, "rounds": 120, "seconds": 90.0}
    value, tuned = None if total is None else 0.8, {**settings, **({"fd.beta": 0.8} if "beta" in method else {})}
    return ChosenSettings(method=method, sum=total, settings=settings, value=value, tuned=tuned, **numbers)


METHODS = (
    chosen("fedavg", "fedavg", lr=0.1),
    chosen("dr + fd(beta=?)", "dr + fd(beta=0.8)", lr=0.31),
    chosen("prox(mu=?)", None),
)


@pytest.fixture
def tuned() -> Path:
    folder = Path("runs/tune")
    recipe = {**RECIPE, "data": {"name": "digits", "validation": 0.2}}
    write(folder, Tuned(recipe=recipe, metric="accuracy", seeds=(0, 2), methods=METHODS))
    return folder


def test_chosen_settings_are_run_on_fresh_seeds_and_all_training_data(tuned: Path) -> None:
    comparison = fl.compare(tuned=tuned, seeds=3, labels={"dr + fd": "FedDr+"})
    assert comparison.root == Path("runs/tune-compared")
    assert comparison.rows == ["fedavg @ lr=0.1", "dr + fd(beta=0.8) @ lr=0.31"]
    assert comparison.seeds == [1, 3, 4]
    for result in comparison.results:
        recipe = result.run.recipe
        assert (recipe.rounds, recipe.clients, recipe.data.validation) == (2, 5, 0)
        assert recipe.lr == (0.1 if result.cell.row.startswith("fedavg") else 0.31)
    (sheet,) = sheets(comparison)
    assert [row[0].text for row in sheet.rows] == ["fedavg", "FedDr+", "prox"]
    assert sheet.rows[2][1].text == "diverged"
    caption = (
        "Settings chosen by validation accuracy on seeds 0, 2, with 16 trials per method, 5 of them stopped early "
        "(120 rounds, 1.5 min). Chosen: fedavg: lr=0.1; FedDr+: lr=0.31 fd.beta=0.8. Final runs: seeds 1, 3, 4, "
        "which tuning never saw; clients hold all training samples. All trials diverged: prox (16 trials)."
    )
    assert sheet.caption == caption
    assert caption in Path("runs/tune-compared/table.md").read_text()
    latex = Path("runs/tune-compared/table.tex").read_text()
    assert rf"\caption{{accuracy in \%, mean $\pm$ deviation over 3 seeds. {caption}}}" in latex
    assert "FedDr+ & " in latex and r"\toprule" in latex
    with Path("runs/tune-compared/table.csv").open() as file:
        lines = {line["label"]: line for line in csv.DictReader(file)}
    assert lines["FedDr+"]["method"] == "dr + fd(beta=0.8) @ lr=0.31" and lines["prox"]["seeds"] == "0"

    page = content([comparison.root])  # calls methods by the same names, and holds the same bold numbers
    places = {series["label"]: place for place, series in enumerate(page["series"])}
    assert sorted(places) == ["FedDr+", "fedavg"]
    for column, name in ((1, "global"), (2, "clients")):
        bold = {places[row[0].text] for row in sheet.rows if row[column].bold}
        assert bold and bold == set(page["bold"]["of"]["accuracy"][name])


def test_warnings_of_a_tuning_name_their_method() -> None:
    texts = ("prox.mu: the best value is at the edge", "the best is within noise of the second (prox.mu=0.1)")
    methods = (chosen("prox(mu=?)", "prox(mu=0.2)", lr=0.1).model_copy(update={"warnings": texts}),)
    write(Path("runs/warned"), Tuned(recipe=RECIPE, metric="accuracy", seeds=(0,), methods=methods))
    fl.compare(tuned="runs/warned", seeds=1)
    shown = Path("runs/warned-compared/table.md").read_text()
    assert f"Warning of the tuning: {texts[0]}" in shown
    assert f"Warning of the tuning: prox: {texts[1]}" in shown


def test_methods_may_be_a_part_of_the_tuned_ones_or_others_and_fields_may_be_overridden(tuned: Path) -> None:
    job = fresh(tuned, ["feddrplus", "fn @ lr=0.3", "dr + fd(beta=0.5)"], 2, {"rounds": 7, "data": {"validation": 0.1}})
    assert job.rows == ["dr + fd(beta=0.8) @ lr=0.31", "fn @ lr=0.3", "dr + fd(beta=0.5)"]
    assert job.seeds == [1, 3]
    assert job.fields["rounds"] == 7 and job.fields["data"] == {"name": "digits", "validation": 0.1}
    assert job.tuning.changed == ("rounds=7 (tuned with 2)",)
    assert list(job.tuning.chosen) == job.rows[:1] and job.tuning.diverged == ()
    assert fresh(tuned, None, 2, {"seed": 10, "data": "wine"}).seeds == [10, 11]
    assert fresh(tuned, ["fedavg"], 1, {"data": "wine"}).fields["data"] == {"name": "wine", "validation": 0.0}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tuned", "runs/none"], "tuned: runs/none has no tuned.json; give the folder of a finished fedloom tune"),
        (["--methods", "prox"], "tuned: in runs/tune every trial of prox(mu=?) diverged"),
        (["--seeds", "0"], "seeds: must be 1 or more (got 0)"),
        (["--protocol", "fedbabu"], "protocol: the recipe is that of the tuning; leave out --protocol"),
        (["--label", "nova=FedNova"], "label: 'nova' is none of the methods"),
        (["--label", "fedavg=prox"], "label: two methods would be called 'prox'"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_written(
    tuned: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *([] if "--tuned" in flags else ["--tuned", "runs/tune"]), *flags])
    assert ended.value.code == 2
    assert f"error: {said}" in capsys.readouterr().err
    assert [path.name for path in Path("runs").iterdir()] == ["tune"]


def test_seeds_that_tuning_saw_are_refused(tuned: Path) -> None:
    with pytest.raises(fl.FedloomError, match="tuning saw seed 2; choose others than 0, 2"):
        fl.compare(tuned=tuned, seeds=[1, 2])
