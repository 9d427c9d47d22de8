"""Compare four methods on the same clients over three seeds: numbers, a figure and a page.

    python examples/compare_methods.py

Running it again reads what is finished. The settings are the same for all methods here; `fl.tune` chooses them for each.
"""

from __future__ import annotations

import fedloom as fl


def main() -> None:
    comparison = fl.compare(
        "fedavg; prox(mu=0.1); scaffold; dr + fd",
        seeds=3,
        labels={"dr + fd": "FedDr+"},
        data="digits",
        split="dirichlet:0.3",
        clients=20,
        fraction=0.25,
        rounds=10,
        epochs=2,
        name="compare-methods",
    )
    for method in comparison.rows:
        mean, deviation = comparison.mean(method, "global"), comparison.deviation(method, "global")
        print(f"{comparison.label(method):14} {100 * mean:.1f} ± {100 * deviation:.1f} %")
    comparison.plot().write_html("curves.html")
    (page,) = fl.report(comparison, out="compare-methods.html", title="Four methods on digits")
    print(f"curves: curves.html; page: {page}; tables and runs: {comparison.root}")


if __name__ == "__main__":
    main()
