"""The commands of `fedloom flower`, as somebody types them."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedloom.cli.main import main
from fedloom.extras import requirement

WITH = ["--shape", "3x8x8", "--classes", "10", "--scale", "255"]


@pytest.fixture
def given() -> Path:
    path = Path("recipe.yaml")
    fields: dict[str, Any] = {"clients": 3, "split": "iid", "model": "linear", "method": "fedprox", "rounds": 2}
    path.write_text(yaml.safe_dump(fields))
    return path


def fedloom(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["flower", *arguments])
    return int(end.value.code or 0)


def test_init_writes_an_app(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedloom("init", "app", str(given), "--set", "deploy.timeout=5") == 0
    project = tomllib.loads(Path("app/pyproject.toml").read_text())
    assert project["project"]["dependencies"] == [requirement("flower")]
    assert project["tool"]["flwr"]["app"]["components"]["serverapp"] == "loom_app.server_app:app"
    assert project["tool"]["flwr"]["app"]["config"]["out"] == str(Path("app/run").resolve())
    written = yaml.safe_load(Path("app/loom_app/recipe.yaml").read_text())
    assert written["deploy"]["timeout"] == 5
    assert "digest" in capsys.readouterr().out


def test_init_for_sites_writes_normalization_as_numbers(given: Path) -> None:
    assert fedloom("init", "app", str(given), "--sites", "--set", "data=digits") == 0
    mean, deviation = yaml.safe_load(Path("app/loom_app/recipe.yaml").read_text())["data"]["normalize"]
    assert 0 < mean[0] < 1 and 0 < deviation[0] < 1
    assert tomllib.loads(Path("app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["scale"] == 16.0


def test_init_for_sites_takes_no_constants_of_data_that_nobody_named(
    given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedloom("init", "app", str(given), "--sites") == 2
    output = capsys.readouterr().err
    for word in ("--shape", "--classes", "--scale", "data:"):
        assert word in output
    assert not Path("app").exists()


@pytest.mark.parametrize(("classes", "names"), [("3", "0,1,2"), ("cat,dog, cow", "cat,dog,cow")])
def test_init_for_sites_writes_shape_classes_and_scale_as_given(given: Path, classes: str, names: str) -> None:
    inputs = ["--shape", "3x16x16", "--classes", classes, "--scale", "255"]
    assert fedloom("init", "app", str(given), "--sites", "--set", "data.normalize=none", *inputs) == 0
    config = tomllib.loads(Path("app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (config["shape"], config["classes"], config["scale"]) == ("3x16x16", names, 255.0)
    data = yaml.safe_load(Path("app/loom_app/recipe.yaml").read_text())["data"]
    assert data["name"] == "sites"
    assert data["normalize"] == "none"


def test_own_parts_travel_in_the_app(given: Path) -> None:
    Path("mine.py").write_text(
        "import fedloom as fl\n\n\nclass Centerd(fl.Part):\n    'Pulls.'\n\n    def regularizer(self, batch, client):\n"
        "        return batch.logits.mean(0).square().sum()\n"
    )
    assert fedloom("init", "app", str(given), "--set", "method=centerd", "--set", "parts=mine.py") == 0
    assert Path("app/loom_app/mine.py").read_text() == Path("mine.py").read_text()
    assert yaml.safe_load(Path("app/loom_app/recipe.yaml").read_text())["parts"] == ["loom_app.mine"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["init", "a b", "recipe.yaml"], "cannot name a Flower app"),
        (["init", "full", "recipe.yaml"], "exists already"),
        (["init", "app", "recipe.yaml", "--test", "x.npz"], "--test: without --sites"),
        (["init", "app", "recipe.yaml", "--sites", *WITH, "--shape", "3x8"], "--shape: '3x8'"),
        (["init", "app", "recipe.yaml", "--sites", *WITH[:4]], "go together"),
        (["init", "app", "recipe.yaml", "--sites", *WITH, "--classes", "1"], "--classes: '1'"),
        (["init", "app", "recipe.yaml", "--sites", *WITH, "--classes", "a,a"], "each name once"),
        (["init", "app", "recipe.yaml", "--sites", *WITH, "--scale", "0"], "--scale: 0"),
        (["init", "app", "recipe.yaml", "--sites", *WITH], "data.normalize: set needs the mean"),
        (["init", "app", "recipe.yaml", "--sites", *WITH, "--set", "data=digits"], "the recipe names its data, digits"),
        (["init", "app", "recipe.yaml", *WITH], "they are for --sites"),
        (["init", "app", "nothing.yaml"], "cannot read"),
        (["init", "app", "recipe.yaml", "--set", "deploy.timeout=0"], "deploy.timeout: must be greater than 0"),
        (["init", "app", "recipe.yaml", "--set", "deploy.timeot=3"], "did you mean timeout?"),
        (["plan", "recipe.yaml", "--shape", "1x8x8"], "go together"),
        (["plan", "recipe.yaml", "--shape", "8x8", "--classes", "10"], "--shape: '8x8'"),
        (["certs", "full"], "keys are never overwritten"),
        (["certs", "keys", "--nodes", "0"], "--nodes"),
        (["check", "missing.json"], "roster: cannot read missing.json"),
        (["roster", "new.json", "missing.pub"], "key: cannot read missing.pub"),
        (["roster", "recipe.yaml", "missing.pub"], "rosters are never overwritten"),
        (["personalize", "full"], "no site below"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], words: str, given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("full").mkdir()
    Path("full/x").touch()
    assert fedloom(*arguments) == 2
    assert words in capsys.readouterr().err
    assert not Path("app").exists()


def test_plan_prints_what_leaves_and_what_stays(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedloom("plan", str(given), "--set", "method=scaffold") == 0
    output = capsys.readouterr().out
    for words in ("leaves a site in every round", "scaffold.control", "stays at the site", "train, test"):
        assert words in output


def test_sites_writes_a_file_for_each_client(given: Path) -> None:
    assert fedloom("sites", "files", str(given)) == 0
    assert sorted(path.name for path in Path("files").iterdir()) == ["site-0.npz", "site-1.npz", "site-2.npz"]


def test_certs_makes_keys_that_only_their_owner_reads(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography", reason="comes with flwr")
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    assert fedloom("certs", "keys", "--nodes", "2", "--host", "127.0.0.1", "--host", "link.example") == 0
    assert {path.name for path in Path("keys").iterdir()} == {
        *("ca.crt", "ca.key", "server.pem", "server.key"),
        *("site-0.key", "site-0.pub", "site-1.key", "site-1.pub", "roster.json"),
    }
    for path in Path("keys").glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    root = x509.load_pem_x509_certificate(Path("keys/ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate(Path("keys/server.pem").read_bytes())
    server.verify_directly_issued_by(root)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example"]
    assert isinstance(server.public_key(), ec.EllipticCurvePublicKey)


def test_check_compares_keys_with_the_roster(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography", reason="comes with flwr")
    assert fedloom("certs", "keys", "--nodes", "2") == 0
    capsys.readouterr()
    assert fedloom("check", "keys/roster.json", "keys/site-0.key", "keys/site-1.key") == 0
    output = capsys.readouterr().out.splitlines()
    assert [line[:24] for line in output[:2]] == ["client 0: site-0 SHA256:", "client 1: site-1 SHA256:"]
    assert output[2:4] == [f"keys/site-{k}.key: the key of client {k}, readable by its owner alone" for k in (0, 1)]
    assert output[4].startswith("roster ")
    assert fedloom("certs", "others", "--nodes", "2") == 0
    Path("twin.key").write_bytes(Path("keys/site-0.key").read_bytes())
    Path("open.key").write_bytes(Path("keys/site-0.key").read_bytes())
    Path("twin.key").chmod(0o600)
    Path("open.key").chmod(0o604)
    for keys, words in (
        (["others/site-0.key"], "key: others/site-0.key belongs to no client of keys/roster.json"),
        (["keys/site-0.key", "twin.key"], "twin.key and keys/site-0.key are the same key, of client 0"),
        (["open.key"], "open.key can be read by other users"),
        (["keys/site-0.pub"], "site-0.pub can be read by other users"),
    ):
        capsys.readouterr()
        assert fedloom("check", "keys/roster.json", *keys) == 2
        assert words in capsys.readouterr().err


def test_a_roster_is_made_of_the_keys_that_sites_made(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography", reason="comes with flwr")
    assert fedloom("certs", "keys", "--nodes", "2") == 0
    capsys.readouterr()
    assert fedloom("roster", "roster.json", "keys/site-1.pub", "keys/site-0.pub") == 0
    assert capsys.readouterr().out.startswith("client 0: site-1 SHA256:")
    assert fedloom("roster", "twice.json", "keys/site-1.pub", "keys/site-1.pub") == 2
    assert not Path("twice.json").exists()
