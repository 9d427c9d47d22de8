"""The tutorial about three hospitals shows what a reader sees: a fingerprint that is copied from it is the right one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import confirmed, sites

from fedloom.deploy.site.worker import SiteWorker

DOCS = Path(__file__).parents[3] / "docs"


def test_the_printed_claims_and_digests_are_those_of_its_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SiteWorker._latest = None
    page = (DOCS / "hospitals.md").read_text(encoding="utf-8")
    fields = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    nodes, recipe, settings = sites(fields, tmp_path)
    for client in range(3):
        nodes.configs[100 + client]["name"] = f"hospital-{client}"
    fingerprint = confirmed(recipe, settings, nodes).confirm
    assert set(re.findall(r"[0-9a-f]{32}", page + (DOCS / "deploy.md").read_text(encoding="utf-8"))) == {fingerprint}
    assert f"(digest {recipe.digest()})" in page
    claims = [line.removeprefix("fedloom: ") for line in capsys.readouterr().out.splitlines() if "hospital-" in line]
    shown = re.findall(r"^fedloom: (\d .*hospital-.*), \.\.\.$", page, re.MULTILINE)
    assert len(shown) == 3 and all(line.startswith(seen) for line, seen in zip(claims, shown, strict=True))
