"""One table of several tuned comparisons: accuracy, chosen settings, and what a round costs.

    fedloom tune cifar.yaml --name A --trials 6 --methods "fedavg; scaffold"
    fedloom compare --tuned runs/A --seeds 3 --no-personal
    fedloom compare cifar.yaml --methods "fedavg; scaffold" --rounds 3 --workers 1 --no-personal --name cost
    python benchmarks/tuned.py runs/A runs/B --cost runs/cost --csv benchmarks/results/tuned-cifar10.csv

Studies may be tuned in parts, as long as their recipe is the same; of a method that is in several, the last counts. A csv that
exists is extended, and its seconds are replaced where they were measured again. Seconds are those of a short comparison of
methods on an otherwise idle core, relative to its first method.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd


def study(folder: Path) -> pd.DataFrame:
    """The methods of one tuning with what they reached."""
    reached = pd.read_csv(folder.with_name(f"{folder.name}-compared") / "table.csv")
    tuned = json.loads((folder / "tuned.json").read_text())["methods"]
    assert len(reached) == len(tuned), folder
    chosen = [" ".join(f"{name}={value:g}" for name, value in method["tuned"].items()) for method in tuned]
    counts = [{name: method[name] for name in ("trials", "diverged", "default_value")} for method in tuned]
    return reached.assign(chosen=chosen).join(pd.DataFrame(counts))


def percent(row: pd.Series, name: str) -> str:
    mean = row[f"{name}_mean"]
    return "" if pd.isna(mean) else f"{100 * mean:.1f} ± {100 * row[f'{name}_deviation']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--cost", type=Path)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    table = pd.concat([study(folder) for folder in given.studies], ignore_index=True)
    table = table.drop(columns=["seconds_mean", "seconds_deviation", "lost_mean", "lost_deviation"], errors="ignore")
    table["label"] = table["label"].str.replace(r"\(.*", "", regex=True)
    if given.csv and given.csv.exists():
        table = pd.concat([pd.read_csv(given.csv), table], ignore_index=True)
    if given.cost:
        cost = pd.read_csv(given.cost / "table.csv")
        seconds = cost.set_index(cost.get("label", cost["method"]).str.replace(r"\(.*", "", regex=True))["seconds_mean"]
        measured = table["label"].map(seconds / seconds.iloc[0])
        table["relative_seconds"] = measured.fillna(table.get("relative_seconds", measured))
    places = {label: place for place, label in enumerate(table["label"].drop_duplicates())}
    table = table.drop_duplicates("label", keep="last").sort_values("label", key=lambda labels: labels.map(places))
    if given.csv:
        table.to_csv(given.csv, index=False, float_format="%.6g")
    print("| method | chosen | trials | global | clients | seconds | MB/round |\n|---|---|--:|--:|--:|--:|--:|")
    for _, row in table.iterrows():
        seconds = "" if pd.isna(row.get("relative_seconds")) else f"{row['relative_seconds']:.1f}"
        cells = [f"`{row['label']}`", row["chosen"], str(row["trials"]), percent(row, "global"), percent(row, "client")]
        print("| " + " | ".join([*cells, seconds, f"{row['bytes_mean'] / 1e6:.1f}"]) + " |")


if __name__ == "__main__":
    main()
