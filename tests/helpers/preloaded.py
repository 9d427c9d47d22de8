"""`flwr-clientapp` without its imports: a process that has imported Flower, torch and fedloom forks one for every message.

Flower's SuperNodes start a process for every message to a node, and most of its work is imports. Here they find this
command first on their PATH: it passes its arguments, folder, environment and output on to the process that forks, and lives
as long as what was forked; either of them ends with the other. Everything from Flower's own `main` on is Flower's.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

COMMAND = "flwr-clientapp"
SCRIPT = """#!{python} -IS
import json, os, socket, sys
wire = socket.socket(socket.AF_UNIX)
wire.connect({address!r})
told = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(wire, [len(told).to_bytes(4, "big")], [0, 1, 2])
wire.sendall(told)
wire.recv(1)  # nothing ever comes: the other end is closed when the process ends
"""


def write_command(folder: Path, address: Path) -> None:
    """The command, in a folder for PATH."""
    folder.mkdir()
    command = folder / COMMAND
    command.write_text(SCRIPT.format(python=sys.executable, address=str(address)), encoding="utf-8")
    command.chmod(0o755)


def serve(address: str) -> None:
    """Fork a process for every command that connects, in which this function returns to run it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forked
    while True:
        wire, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become(wire)
            return
        wire.close()


def become(wire: socket.socket) -> None:
    """Take over the arguments, the folder, the environment and the files of the command at the other end."""
    head, files, _, _ = socket.recv_fds(wire, 4, 3)
    with wire.makefile("rb") as told:
        sys.argv, folder, environment = json.loads(told.read(int.from_bytes(head, "big")))
    for own, file in enumerate(files):
        os.dup2(file, own)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=end_with, args=(wire,), daemon=True).start()


def end_with(wire: socket.socket) -> None:
    wire.recv(1)
    os._exit(1)


if __name__ == "__main__":
    from flwr.supernode.cli import flwr_clientapp

    import fedloom.deploy.flower.client  # noqa: F401

    gc.freeze()  # what is imported need not be collected when a forked process ends: that takes a second
    serve(sys.argv[1])
    sys.exit(flwr_clientapp())
