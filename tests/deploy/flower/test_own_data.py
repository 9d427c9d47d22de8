"""Sites with data of their own: the same weights as with all data in one place, and nothing but what is planned leaves."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from federations import application, confirmed, grid, sites
from flwr.app import Context, Message
from loopback import Loopback

import fedloom as fl
from fedloom.data import InputSpec, load
from fedloom.deploy.flower.app import Settings, read
from fedloom.deploy.flower.app_template import SiteInputs, init, write_sites
from fedloom.deploy.flower.plan import JOIN, ROUND, TEST, blank_experiment, plan
from fedloom.deploy.flower.server import serve as serve_app
from fedloom.deploy.messages.wire import pack, unpack
from fedloom.deploy.site.personalize import personalize
from fedloom.deploy.site.worker import SiteWorker
from fedloom.engine.experiment import prepare
from fedloom.errors import FedloomError, TooFew
from fedloom.recipe import Recipe, recipe
from fedloom.runs.run import Run

FIELDS: dict[str, Any] = {
    "data": "digits",
    "split": "dirichlet:0.5",
    "clients": 3,
    "model": "mlp",
    "method": "feddc + fedper",
    "rounds": 2,
    "fraction": 1.0,
    "lr": 0.05,
    "eval_every": 1,
    "eval_clients": 1,
    "deploy": {"join_timeout": 0.5},
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    SiteWorker._latest = None
    yield
    SiteWorker._latest = None


def federation(tmp_path: Path, **fields: Any) -> tuple[Loopback, Any, Settings]:
    return sites(FIELDS | fields, tmp_path)


def serve(given: Recipe, settings: Settings, nodes: Loopback) -> Run:
    return serve_app(given, confirmed(given, settings, nodes), nodes)


def test_sites_end_with_the_weights_of_all_data_in_one_place(tmp_path: Path) -> None:
    run = serve(*_order(federation(tmp_path)))
    alone = fl.run(FIELDS, out=str(tmp_path / "alone"))
    assert run.summary["digest"] == alone.summary["digest"]
    assert run.summary["personal_accuracy"] == alone.summary["personal_accuracy"]
    sizes = np.diff(np.load(alone.path / "partition.npz")["test_offsets"])
    for ours, theirs, clients in zip(run.rounds, alone.rounds, alone.clients, strict=True):
        assert ours["train_loss"] == theirs["train_loss"]
        assert ours["client_accuracy"] == theirs["client_accuracy"]
        assert ours["test_accuracy"] == pytest.approx(np.average(clients["accuracy"], weights=sizes), abs=1e-12)


METRICS = ["macro_f1", "accuracy", "loss", "auroc", "top5", "calibration_error"]


def test_sites_compute_the_metrics_of_a_simulation_and_scores_stay_there(tmp_path: Path) -> None:
    """Of the union, means over samples are exact; other metrics are means over sites, weighted by test samples."""
    nodes, given, settings = federation(tmp_path, metrics=METRICS)
    run = serve(given, settings, nodes)
    alone = fl.run(FIELDS, metrics=METRICS, out=str(tmp_path / "alone"))
    assert run.summary["digest"] == alone.summary["digest"] == fl.run(FIELDS, out="plain").summary["digest"]
    assert run.clients == alone.clients
    for name in METRICS:
        assert run.summary[f"client_{name}"] == alone.summary[f"client_{name}"]
        assert run.summary[f"personal_{name}"] == alone.summary[f"personal_{name}"]
        each = alone.clients[-1]
        if name in ("accuracy", "loss", "top5"):
            pooled = np.average(each[name], weights=each["tested"])
            assert run.summary[f"test_{name}"] == pytest.approx(pooled, abs=1e-12)
        else:
            known = [(v, n) for v, n in zip(each[name], each["tested"], strict=True) if v is not None]
            values, sizes = zip(*known, strict=True)
            assert run.summary[f"test_{name}"] == pytest.approx(np.average(values, weights=sizes))
    assert run.summary["site_means"] == ["macro_f1", "auroc", "calibration_error"]
    assert "site_means" not in alone.summary
    listed = {row.name for row in plan(blank_experiment(given, (1, 8, 8), 10)).sections[TEST]}
    assert listed == {"correct", "total", *(f"metric_{name}" for name in METRICS if name != "accuracy")}
    reports = [unpack(reply.content)[0]["report"] for _, reply in nodes.sent]
    assert {name for report in reports if "correct" in report for name in report} == listed


@pytest.mark.parametrize(
    ("claimed", "reason"),
    [
        ({"metric_macro_f1": 1.5}, "its macro_f1 is 1.5, which is not between 0 and 1"),
        ({"metric_loss": -1.0}, "its loss is -1, which is not between 0 and inf"),
        ({"metric_loss": 1e60}, "its metric_loss is 1e+60"),
        ({"metric_loss": "0.1"}, "its metric_loss is '0.1'"),
        ({"metric_loss": [0.1, 0.2]}, "its metric_loss is"),
        ({"scores": [0.1, 0.2]}, "scores was not asked for"),
    ],
)
def test_a_metric_that_cannot_be_is_not_counted(
    claimed: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tamper(reply: Message, context: Context) -> Message:
        content, groups = unpack(reply.content)
        if "correct" in content.get("report", {}):
            content["report"] |= claimed
            reply.content["fedloom"] = pack(content, **groups)["fedloom"]
        return reply

    nodes, given, settings = federation(tmp_path, method="fedavg", rounds=1, metrics=["macro_f1", "loss"])
    nodes.tamper[101] = tamper
    run = serve(given, settings, nodes)
    assert f"the test of client 1 does not count: site-1: {reason}" in capsys.readouterr().out
    line = run.clients[-1]
    assert line["macro_f1"][1] is line["loss"][1] is line["tested"][1] is None
    assert None not in (line["macro_f1"][0], line["macro_f1"][2])
    assert run.summary["client_macro_f1"]["clients"] == 2 and "undefined" not in run.summary["client_macro_f1"]


def test_a_site_reports_an_undefined_metric_as_null(tmp_path: Path) -> None:
    fields = {"split": "shards:1", "clients": 10, "method": "fedavg", "rounds": 1, "metrics": ["auroc"]}
    run = serve(*_order(federation(tmp_path, **fields)))
    assert run.clients[-1]["auroc"] == [None] * 10 and run.summary["test_auroc"] is None
    assert run.summary["client_auroc"] == {"clients": 0, "undefined": 10}


def _order(made: tuple[Loopback, Any, Settings]) -> tuple[Any, Settings, Loopback]:
    nodes, given, settings = made
    return given, settings, nodes


def test_the_server_distils_on_another_sets_images(tmp_path: Path) -> None:
    images = load("digits")
    x, y = images.test_x[:200].numpy(), images.test_y[:200].numpy()
    np.savez(tmp_path / "public.npz", train_x=x, train_y=y, test_x=x[:2], test_y=y[:2])
    fields = {"method": "feddf(steps=20)", "data": {"name": "digits", "public_from": str(tmp_path / "public.npz")}}
    run = serve(*_order(federation(tmp_path, **fields)))
    assert run.summary["digest"] == fl.run(FIELDS | fields, out=str(tmp_path / "alone")).summary["digest"]


def test_masked_sites_end_with_those_weights_too_but_for_rounding(tmp_path: Path) -> None:
    masked = {"deploy": FIELDS["deploy"] | {"secure_aggregation": True}, "method": "scaffold + fedper"}
    run = serve(*_order(federation(tmp_path, **masked)))
    alone = fl.run(FIELDS, method="scaffold + fedper", out=str(tmp_path / "alone"))
    for name, tensor in alone.weights.items():
        assert float((run.weights[name] - tensor).abs().max()) < 1e-5


def test_what_leaves_a_site_is_what_the_plan_lists(tmp_path: Path) -> None:
    nodes, given, settings = federation(tmp_path, method="scaffold + fedper")
    run = serve(given, settings, nodes)
    listed = plan(blank_experiment(given, (1, 8, 8), 10))
    tensors = {row.name: row.nbytes for row in listed.sections[ROUND] if row.kind != "number"}
    numbers = {name for when in (ROUND, TEST) for row in listed.sections[when] for name in row.name.split(", ")}
    joining = {name for row in listed.sections[JOIN] for name in row.name.split(", ")}
    kinds = set()
    for _, reply in nodes.sent:
        content, groups = unpack(reply.content)
        assert set(content) == {"client", "digest", "report"}
        assert set(content["report"]) <= (joining if "inputs" in content["report"] else numbers)
        assert set(groups) <= {"up"}
        for name, tensor in groups.get("up", {}).items():
            assert tensor.numel() * tensor.element_size() == tensors[name]
        kinds.add(reply.metadata.message_type)
    assert kinds == {"train", "evaluate", "query"}
    assert {name for _, reply in nodes.sent for name in unpack(reply.content)[1].get("up", {})} == set(tensors)
    assert run.rounds[0]["bytes_up"] == 3 * listed.up_bytes
    assert not any(row.name == "personal" for row in listed.sections[ROUND])
    assert any(row.name == "personal" for row in listed.stays)


def test_a_plan_without_the_data_is_the_plan_with_them() -> None:
    for method in ("fedavg", "fnr", "scaffold + fn", "feddrplus", "fedrep"):
        made = recipe(FIELDS | {"method": method})
        assert plan(blank_experiment(made, (1, 8, 8), 10)).sections == plan(prepare(made)).sections


def test_class_counts_are_in_the_plan_of_fnr() -> None:
    listed = plan(prepare(recipe(FIELDS | {"method": "fnr"})))
    assert {"fnr.counts", "fnr.norms", "fnr.accuracy"} <= {row.name for row in listed.sections[ROUND]}


def test_a_site_fine_tunes_and_keeps_its_own_model_as_the_simulation_would(tmp_path: Path) -> None:
    nodes, given, settings = federation(tmp_path)
    serve(given, settings, nodes)
    sent = len(nodes.sent)
    alone = fl.run(FIELDS, out=str(tmp_path / "alone"))
    expected = np.array(fl.personalize(alone, "full", 2, 0.01).accuracy)
    for client, home in enumerate(sorted((tmp_path / "sites").glob("*/client-*"))):
        personal = personalize(home, "full", 2, 0.01)
        assert personal.accuracy == expected[:, client].tolist()
        assert personal.model.exists()
    assert len(nodes.sent) == sent


def test_a_site_that_missed_the_end_can_be_given_the_final_weights(tmp_path: Path) -> None:
    nodes, given, settings = federation(tmp_path)
    run = serve(given, settings, nodes)
    home = next((tmp_path / "sites").glob("*/client-000001"))
    expected = personalize(home, "head", 1, 0.01).accuracy
    (home / "served.safetensors").unlink()
    with pytest.raises(FedloomError, match="has no final model"):
        personalize(home, "head", 1, 0.01)
    assert personalize(home, "head", 1, 0.01, weights=run.path / "final.safetensors").accuracy == expected


def test_the_servers_folder_says_that_the_images_are_elsewhere(tmp_path: Path) -> None:
    nodes, given, settings = federation(tmp_path, method="fedavg")
    run = serve(given, settings, nodes)
    with pytest.raises(FedloomError, match="the samples of this run are at its sites"):
        fl.personalize(run)
    assert run.summary["test_accuracy"] > 0.3
    assert len(list((run.path / "checkpoints").glob("round-*"))) >= 1  # looking at it did not harm it


def test_the_server_may_test_on_images_of_its_own(tmp_path: Path) -> None:
    nodes, given, settings = federation(tmp_path, method="fedavg")
    own = tmp_path / "files" / "site-2.npz"
    run = serve(given, Settings(**{**vars(settings), "test": str(own)}), nodes)
    third = run.clients[-1]["accuracy"][2]
    assert run.summary["test_accuracy"] == pytest.approx(third)


def test_sites_that_lack_classes_are_numbered_alike(tmp_path: Path) -> None:
    """A site that knows only some classes, by name, trains the right outputs."""
    nodes, given, settings = federation(tmp_path, method="fedavg", split="shards:2", clients=5, rounds=1)
    for client in range(5):
        path = Path(nodes.configs[100 + client]["data"])
        content = dict(np.load(path))
        present = np.unique(np.concatenate((content["train_y"], content["test_y"])))
        for key in ("train_y", "test_y"):
            content[key] = np.searchsorted(present, content[key])
        content["class_names"] = content["class_names"][present]
        np.savez(path, **content)
    run = serve(given, settings, nodes)
    alone = fl.run(
        FIELDS | {"method": "fedavg", "split": "shards:2", "clients": 5, "rounds": 1}, out=str(tmp_path / "a")
    )
    assert run.summary["digest"] == alone.summary["digest"]


def test_sites_of_declared_shape_and_classes_train_and_others_are_refused_by_name(tmp_path: Path) -> None:
    fields = {**FIELDS, "method": "fedavg", "data": {"normalize": "none"}}
    inputs = SiteInputs(InputSpec.image((1, 8, 8), 16.0), tuple(map(str, range(10))))
    package = init(tmp_path / "app", recipe(fields), "sites", inputs=inputs)[0] / "loom_app"
    nodes = grid(package, tmp_path, 3)
    for client, path in enumerate(write_sites(tmp_path / "files", recipe(FIELDS))):
        nodes.configs[100 + client]["data"] = str(path)
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    given = read(package / "server_app.py")
    run = serve(given, Settings.of(config), nodes)
    alone = fl.run({**fields, "data": {"name": "digits", "normalize": "none"}}, out=str(tmp_path / "alone"))
    assert run.summary["digest"] == alone.summary["digest"]
    other = Settings.of({**config, "out": str(tmp_path / "other"), "classes": "0,1,2"})
    with pytest.raises(TooFew, match="it has the class '3'; the federation knows 0, 1, 2"):
        serve(given.changed(deploy={"join_timeout": 0.5, "min_cohort": 3}), other, nodes)


def test_an_app_for_sites_without_a_scale_is_refused() -> None:
    with pytest.raises(FedloomError, match="app config: scale is missing"):
        Settings.of({"data": "sites", "out": "run"})


def test_a_site_without_data_or_with_other_images_is_named(tmp_path: Path) -> None:
    nodes, given, settings = federation(tmp_path)
    del nodes.configs[101]["data"]
    with pytest.raises(TooFew, match=r"clients 1 have not connected .*data is missing"):
        serve_app(given, settings, nodes)


def test_a_site_whose_data_changed_does_not_take_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, given, settings = federation(tmp_path, method="fedavg")
    settings = confirmed(given, settings, nodes)
    counts = iter((1, 2))
    answer = nodes.pull_messages

    def later(numbers: Any) -> Any:
        replies = answer(numbers)
        if replies and next(counts, 0) == 1:
            path = Path(nodes.configs[101]["data"])
            content = dict(np.load(path))
            content["train_x"], content["train_y"] = content["train_x"][1:], content["train_y"][1:]
            np.savez(path, **content)
        return replies

    nodes.pull_messages = later  # type: ignore[method-assign]
    run = serve_app(given, settings, nodes)
    assert "train samples, and" in run.rounds[0]["lost_clients"]["1"]


@pytest.mark.parametrize(
    ("claimed", "reason"),
    [
        ({"correct": 2**52, "total": 2**52}, f"its correct is {2**52}"),
        ({"correct": 10**6, "total": 10**6}, "it tested on 1000000 samples, and it has "),
        ({"correct": 0, "total": 0}, "it tested on 0 samples, and it has "),
        ({"correct": 7, "total": 5}, "it has 7 of 5 right"),
        ({"correct": 10**400, "total": 10**400}, "its correct is 1000"),
    ],
)
def test_a_test_on_other_images_than_a_client_has_does_not_count(
    claimed: dict[str, int], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server says so; the accuracy of that client is unknown, and the others' are what they are."""

    def tamper(reply: Message, context: Context) -> Message:
        content, groups = unpack(reply.content)
        if "correct" in content.get("report", {}):
            content["report"] = claimed
            reply.content["fedloom"] = pack(content, **groups)["fedloom"]
        return reply

    honest = serve(*_order(federation(tmp_path / "honest", method="fedavg", rounds=1)))
    nodes, given, settings = federation(tmp_path / "lied", method="fedavg", rounds=1)
    nodes.tamper[101] = tamper
    run = serve(given, settings, nodes)
    assert f"the test of client 1 does not count: site-1: {reason}" in capsys.readouterr().out
    first, _, third = honest.clients[-1]["accuracy"]
    assert run.clients[-1]["accuracy"] == [first, None, third]
    held = np.diff(np.load(run.path / "partition.npz")["test_offsets"])[[0, 2]]
    assert run.summary["test_accuracy"] == pytest.approx(np.average([first, third], weights=held))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data": {"name": "digits", "validation": 0.1}}, "data.validation"),
        ({"data": {"public": 0.1}}, "data.public"),
        ({"method": "babu + server-data"}, "method: server-data trains on clients' samples at the server"),
    ],
)
def test_what_needs_everyones_images_is_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(FedloomError, match=words):
        application(FIELDS | {"method": "fedavg"} | fields, tmp_path / "app", "sites")
