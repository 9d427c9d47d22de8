"""A command starts soon: what few commands need is imported by those alone."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = (
    "scipy.stats",
    "scipy.ndimage",
    "sklearn",
    "plotly",
    "pandas",
    "datasets",
    "flwr",
    "ray",
    "mlflow",
    "torch._dynamo",
)


def test_the_library_imports_nothing_heavy_beside_torch() -> None:
    program = (
        "import json, sys, torch; before = set(sys.modules); import fedloom.api;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    new = json.loads(said)
    assert "fedloom.runs.run" in new
    assert [name for name in new if name.startswith(HEAVY)] == []
