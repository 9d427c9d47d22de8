"""A SuperLink and SuperNodes as real processes on loopback, and `flwr run` against them."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import preloaded

SCRIPTS = Path(sys.executable).parent


def free_ports(count: int) -> list[int]:
    """Ports that the system does not give to connections: they are still free when a process is started (again)."""
    return [port for port in random.SystemRandom().sample(range(10_000, 32_000), 100) if _free(port)][:count]


def _free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as one:
        one.bind(("127.0.0.1", port))
        return True
    return False


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.2)


class Process:
    """A process with a group of its own and a log."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str], group: Path) -> None:
        command = [str(SCRIPTS / arguments[0]), *arguments[1:]]
        self.log = log
        with log.open("ab") as file:
            self.made = subprocess.Popen(
                command, stdout=file, stderr=file, env=environment, cwd=group, start_new_session=True
            )

    @property
    def output(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(encoding="utf-8", errors="replace"))

    def kill(self) -> None:
        """The whole group at once, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.made.pid, signal.SIGKILL)
        self.made.wait()

    def wait(self, seconds: float) -> int:
        return self.made.wait(seconds)


class Machines:
    """Everything a federation runs on; use as a context. `preload`: nodes need no imports for every message."""

    def __init__(self, folder: Path, nodes: int, keys: Path | None = None, preload: bool = False) -> None:
        self.folder, self.keys = folder, keys
        self.port, *self.node_ports = free_ports(nodes + 1)
        self.home = folder / "flwr"
        self.home.mkdir(parents=True)
        safety = f'root-certificates = "{keys / "ca.crt"}"' if keys else "insecure = true"
        (self.home / "config.toml").write_text(f'[superlink.loopback]\naddress = "127.0.0.1:{self.port}"\n{safety}\n')
        self.environment = os.environ | {
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "FEDLOOM_SITES": str(folder / "sites"),
            "OMP_NUM_THREADS": "1",
        }
        self.preloads = preload
        self.started: list[Process] = []
        self.nodes: dict[int, Process] = {}

    def __enter__(self) -> Machines:
        if self.preloads:
            self.preload()
        self.start_link()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.started:
            process.kill()
        if kind is not None:
            for process in self.started:
                print(f"--- {process.log}\n{process.output[-3000:]}")
        shutil.rmtree(self.home, ignore_errors=True)

    def start(self, *arguments: str, log: str) -> Process:
        process = Process(arguments, self.folder / log, self.environment, self.folder)
        self.started.append(process)
        return process

    def preload(self) -> None:
        address, commands = self.home / "preloaded", self.folder / "commands"
        preloaded.write_command(commands, address)
        self.start("python", preloaded.__file__, str(address), log="preloaded.log")
        until(address.exists, 120, "the import of Flower, torch and fedloom")
        self.environment["PATH"] = f"{commands}{os.pathsep}{self.environment['PATH']}"

    def start_link(self) -> Process:
        if self.keys:
            safety = [
                *("--ssl-ca-certfile", str(self.keys / "ca.crt"), "--ssl-certfile", str(self.keys / "server.pem")),
                *("--ssl-keyfile", str(self.keys / "server.key"), "--enable-supernode-auth"),
            ]
        else:
            safety = ["--insecure"]
        self.link = self.start(
            *("flower-superlink", *safety, "--disable-runtime-dependency-installation", "--port", str(self.port)),
            log="link.log",
        )
        until(self._listening, 120, "the SuperLink's start")
        return self.link

    def _listening(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def start_node(self, client: int, config: str = "", key: Path | None = None, root: Path | None = None) -> Process:
        safety = ["--insecure"]
        if self.keys:
            safety = ["--root-certificates", str(root or self.keys / "ca.crt")]
            safety += ["--auth-supernode-private-key", str(key or self.keys / f"site-{client}.key")]
        self.nodes[client] = self.start(
            *("flower-supernode", *safety, "--superlink", f"127.0.0.1:{self.port}"),
            *("--port", str(self.node_ports[client]), "--node-config"),
            f'partition-id={client} name="site-{client}" {config}',
            log=f"node-{client}.log",
        )
        return self.nodes[client]

    def run(self, app: Path, *config: str) -> Process:
        """`flwr run --stream`: its log is what a user would see."""
        settings = [item for one in config for item in ("--run-config", one)]
        return self.start("flwr", "run", str(app), "loopback", "--stream", *settings, log=f"{app.name}.log")

    def flwr(self, *arguments: str) -> str:
        process = self.start("flwr", *arguments, log="flwr.log")
        assert process.wait(120) == 0, process.output
        return process.output

    def children(self, name: str) -> list[int]:
        """Living descendants of our processes with this command."""
        parents, commands = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    commands[int(entry.name)] = (entry / "cmdline").read_bytes().split(b"\0")
        ours = {process.made.pid for process in self.started}
        while more := {child for child, parent in parents.items() if parent in ours} - ours:
            ours |= more
        return [pid for pid in ours if any(part.endswith(name.encode()) for part in commands.get(pid, [])[:2])]
