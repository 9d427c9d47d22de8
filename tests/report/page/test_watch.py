"""The server of `fedloom watch` answers this machine only, and figures ask for a browser in words."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fedloom as fl
from fedloom.report.page.watch import serve


@pytest.fixture
def port(small: Path) -> Iterator[int]:
    shutil.copytree(small, "runs/x")
    with serve(["runs"], port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        assert server.server_address[0] == "127.0.0.1"
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, bytes]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    line.request("GET", path, headers={"Host": f"{host}:{port}"})
    answer = line.getresponse()
    return answer.status, answer.read()


def test_data_come_anew_only_when_a_file_has_changed(port: int) -> None:
    status, text = ask(port, "/data.json")
    data = json.loads(text)
    assert (status, data["series"][0]["runs"][0]["done"]) == (200, 1)
    assert ask(port, f"/data.json?mark={data['mark']}") == (204, b"")
    with Path("runs/x/rounds.jsonl").open("a") as file:
        file.write(json.dumps({**json.loads(Path("runs/x/rounds.jsonl").read_text()), "round": 2}) + "\n")
    status, text = ask(port, f"/data.json?mark={data['mark']}")
    assert (status, json.loads(text)["series"][0]["runs"][0]["done"]) == (200, 2)


def test_a_method_has_its_display_name_also_when_its_run_begins_later(small: Path) -> None:
    Path("runs").mkdir()
    with serve(["runs"], port=0, labels=["fedavg=FedAvg", "dr + fd=FedDr+"]) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        shutil.copytree(small, "runs/x")
        names = [series["label"] for series in json.loads(ask(server.server_port, "/data.json")[1])["series"]]
        server.shutdown()
        thread.join()
    assert names == ["FedAvg"]
    with pytest.raises(fl.FedloomError, match="label: 'fedavgg' is none of the methods, which are fedavg"):
        serve(["runs"], port=0, labels=["fedavgg=FedAvg"])


def test_other_places_and_other_hosts_are_refused(port: int) -> None:
    assert ask(port, "/")[0] == 200
    assert ask(port, "/../recipe.yaml")[0] == 404
    assert ask(port, "/data.json", host="evil.example")[0] == 403


def test_what_cannot_be_served_is_said(port: int) -> None:
    with pytest.raises(fl.FedloomError, match=rf"port: {port} cannot be used .* choose another with --port"):
        serve(["runs"], port)
    with pytest.raises(fl.FedloomError, match="watch: there is no folder none"):
        serve(["none"], 0)
    with pytest.raises(fl.FedloomError, match="port: must be 0 to 65535"):
        serve(["runs"], 70000)


def test_figures_without_a_browser_are_refused_with_advice(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_BROWSER", "no-such-browser")
    with pytest.raises(fl.FedloomError, match="drawn by Chromium or Chrome, and none was found; install one"):
        fl.report("runs", "figures", format="png")
    with pytest.raises(fl.FedloomError, match="format: 'jpeg' is unknown; allowed are html, svg, png, pdf"):
        fl.report("runs", "figures", format="jpeg")
    assert not Path("figures").exists()


def spoil_recipe(run: Path) -> None:
    (run / "recipe.yaml").write_text("method: [1\n")


def spoil_method(run: Path) -> None:
    (run / "recipe.yaml").write_text("method: [1, 2]\nseed: .inf\n")


def spoil_line(run: Path) -> None:
    (run / "rounds.jsonl").write_text('{"round": 1}\n')


def spoil_kind(run: Path) -> None:
    line = json.loads((run / "rounds.jsonl").read_text())
    (run / "rounds.jsonl").write_text(json.dumps({**line, "seconds": "soon"}) + "\n")


def spoil_clients(run: Path) -> None:
    (run / "clients.jsonl").write_text('{"round": 1, "accuracy": 3}\n')


def spoil_pipe(run: Path) -> None:
    (run / "rounds.jsonl").unlink()
    os.mkfifo(run / "rounds.jsonl")


def spoil_place(run: Path) -> None:
    (run / "recipe.yaml").unlink()
    (run / "recipe.yaml").mkdir()


@pytest.mark.parametrize(
    "spoil", [spoil_recipe, spoil_method, spoil_line, spoil_kind, spoil_clients, spoil_pipe, spoil_place]
)
def test_a_run_that_cannot_be_read_is_a_line_and_all_others_are_shown(
    spoil: Callable[[Path], None], port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("runs/x", "runs/bad")
    spoil(Path("runs/bad"))
    status, text = ask(port, "/data.json")
    data = json.loads(text)
    assert status == 200
    assert [run["path"] for series in data["series"] for run in series["runs"]] == ["runs/x"]
    (problem,) = data["problems"]
    assert problem["path"] == "runs/bad"
    assert problem["reason"] and "\n" not in problem["reason"] and len(problem["reason"]) < 400
    assert ask(port, "/")[0] == 200
    assert "Traceback" not in capsys.readouterr().err
    fl.report("runs", "page.html")
    assert "runs/bad" in Path("page.html").read_text()
    with pytest.raises(fl.FedloomError, match="report: runs/bad cannot be shown: "):
        fl.report("runs/bad", "other.html")


@pytest.mark.parametrize("name", ["embedding.csv", "spectrum.csv", "layers.csv", "clients.csv", "factors.npz"])
@pytest.mark.parametrize(
    "junk", [bytes(range(256)) * 3, b"stage,index,x,y,layer,client,class\nglobal,1e999,1,1,a,1e999,b\n"]
)
def test_a_run_with_a_damaged_table_is_shown_without_that_table(name: str, junk: bytes, port: int) -> None:
    sections = set(json.loads(ask(port, "/data.json")[1])["series"][0]["runs"][0]["analysis"])
    assert sections == {"rounds", "summary", "factors", "spectrum", "layers", "embedding", "clients"}
    (Path("runs/x/analysis") / name).write_bytes(junk)
    status, text = ask(port, "/data.json")
    data = json.loads(text)
    assert (status, len(data["series"])) == (200, 1)
    assert len(data["problems"]) <= 1
    if data["problems"]:
        assert name in data["problems"][0]["reason"]
        shown = set(data["series"][0]["runs"][0]["analysis"])
        assert shown == sections - {name.partition(".")[0]}


@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "NaN", "Infinity", "9" * 5000, "9" * 400, '"' + "x" * 10**5 + '"']
)
def test_numbers_that_nobody_writes_do_not_reach_the_page(number: str, port: int) -> None:
    path = Path("runs/x/summary.json")
    path.write_text(path.read_text().replace('"test_accuracy": ', f'"test_accuracy": {number}, "was": ', 1))
    log = Path("runs/x/rounds.jsonl")
    log.write_text(log.read_text().replace('"train_loss": ', f'"train_loss": {number}, "was": ', 1))
    status, text = ask(port, "/data.json")
    assert status == 200
    assert json.loads(text)["problems"][0]["path"] == "runs/x"
    assert "Infinity" not in text.decode()


def test_an_edited_log_is_told_beside_the_run(port: int) -> None:
    log = Path("runs/x/rounds.jsonl")
    log.write_text(log.read_text().replace('"train_loss": ', '"train_loss": 1', 1))
    data = json.loads(ask(port, "/data.json")[1])
    assert len(data["series"]) == 1
    assert "rounds.jsonl was changed after round 1" in data["problems"][0]["reason"]


def test_a_folder_that_vanishes_leaves_an_empty_page(port: int) -> None:
    shutil.rmtree("runs")
    status, text = ask(port, "/data.json")
    assert (status, json.loads(text)["series"]) == (200, [])
