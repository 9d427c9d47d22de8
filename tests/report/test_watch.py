"""The server of `fedloom watch` answers this machine only, and figures ask for a browser in words."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedloom as fl
from fedloom.report.watch import serve


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    fl.run(out="runs/x", rounds=1, lanes=1, model="linear", eval_every=0)
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
