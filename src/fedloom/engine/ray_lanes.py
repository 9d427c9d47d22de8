"""Lanes as Ray actors, one core each, on as many machines as the cluster has.

Ray moves Python objects between its processes with pickle, which is safe only among machines that trust each other; what
fedloom sends is JSON-like orders and bytes, and nothing is ever read from a file that way. What is broadcast is put into
Ray's object store once and fetched once by each machine.

    RAY_ADDRESS, or a cluster that runs on this machine, is joined; without one, Ray is started here for the time of the run.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from fedloom.engine.blueprint import Answer, Resident
from fedloom.engine.lanes import cores
from fedloom.engine.regions import Bytes
from fedloom.errors import FedloomError

# Unless they are set already: no telemetry, no advice, and not a quarter of an hour of trying where nobody answers.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "2",
}
PATIENCE = 10.0  # seconds until somebody answers at RAY_ADDRESS
NEEDED = 'lanes: ray needs Ray on every machine; install it with: pip install "fedloom[ray]"'


class Cluster:
    """A connection to Ray, with the actors that wait for more work."""

    def __init__(self) -> None:
        for name, value in SETTINGS.items():  # some are read when Ray is imported
            os.environ.setdefault(name, value)
        ray = self.ray = _ray()
        self._ours = not ray.is_initialized()
        if self._ours:
            self._connect()
        self.waiting: list[Any] = []

    def _connect(self) -> None:
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": False}
        _knock(os.environ.get("RAY_ADDRESS", ""))
        logging.getLogger("ray").setLevel(logging.ERROR)
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        try:
            try:
                self.ray.init(address="auto", **quiet)
            except ConnectionError:
                if os.environ.get("RAY_ADDRESS"):
                    raise
                alone = {"num_cpus": cores(), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
                self.ray.init(address="local", **alone, **quiet)
        except (ConnectionError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            place = os.environ.get("RAY_ADDRESS", "this machine")
            said = str(error).strip().splitlines()[0]
            raise FedloomError(f"lanes: Ray cannot be reached at {place}: {said}") from None
        finally:
            if main:
                signal.signal(signal.SIGTERM, before)  # Ray takes it; a run knows better when it may be stopped

    def lanes(self, device: str) -> int:
        """As many as the cluster has cores, or accelerators."""
        kind = "CPU" if device == "cpu" else "GPU"
        found = int(self.ray.cluster_resources().get(kind, 0))
        if not found:
            raise FedloomError(f"lanes: the Ray cluster has no {kind}, and a lane needs one")
        return found

    def nodes(self) -> int:
        return sum(bool(node["Alive"]) for node in self.ray.nodes())

    def leave(self) -> None:
        for actor in self.waiting:
            self.ray.kill(actor)
        if self._ours:
            self.ray.shutdown()


_cluster: Cluster | None = None
_keepers = 0


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Inside, this process is a part of the cluster."""
    global _cluster
    with kept():
        if _cluster is None or not _cluster.ray.is_initialized():
            _cluster = Cluster()
        yield _cluster


@contextmanager
def kept() -> Iterator[None]:
    """Runs inside of it share a connection, once there is one, and use each other's actors."""
    global _cluster, _keepers
    _keepers += 1
    try:
        yield
    finally:
        _keepers -= 1
        if not _keepers and _cluster is not None:
            left, _cluster = _cluster, None
            left.leave()


def _knock(address: str) -> None:
    """Whether anybody listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except OSError as error:
        raise FedloomError(
            f"lanes: Ray cannot be reached at {address} ({error.strerror or error}); set RAY_ADDRESS to the cluster's head, "
            f"or unset it to use this machine"
        ) from None


def installed() -> bool:
    return find_spec("ray") is not None


def check() -> None:
    if not installed():
        raise FedloomError(NEEDED)


def _ray() -> Any:
    check()
    import ray

    return ray


class Actors:
    """A transport to Ray actors."""

    name = "the Ray cluster"

    def __init__(self, cluster: Cluster, device: str = "cpu") -> None:
        self._cluster, self._ray = cluster, cluster.ray
        needs = {"num_cpus": 1, "num_gpus": 0 if device == "cpu" else 1}
        self._make = self._ray.remote(Lane).options(
            **needs, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self._actors: dict[int, Any] = {}
        self._answers: dict[int, Any] = {}
        self._common: tuple[str, Any] = "", None

    def start(self, lane: int) -> None:
        self._actors[lane] = self._cluster.waiting.pop() if self._cluster.waiting else self._make.remote()

    def send(self, lane: int, order: dict[str, Any], common: tuple[str, Bytes] | None, values: Sequence[Bytes]) -> None:
        if common is not None and common[0] != self._common[0]:
            self._common = common[0], self._ray.put(common[1])
        shared = None if common is None else self._common[1]
        self._answers[lane] = self._actors[lane].answer.remote(order, shared, list(values))

    def wait(self, lanes: Sequence[int], seconds: float) -> list[int]:
        lane_of = {self._answers[lane]: lane for lane in lanes}
        first, rest = self._ray.wait(list(lane_of), num_returns=1, timeout=seconds)
        more = self._ray.wait(rest, num_returns=len(rest), timeout=0)[0] if first and rest else []
        return [lane_of[answer] for answer in [*first, *more]]

    def receive(self, lane: int) -> Answer | None:
        errors = self._ray.exceptions
        try:
            answer: Answer = self._ray.get(self._answers.pop(lane))
            return answer
        except errors.RayTaskError as error:  # not of a job, whose errors are answers: fedloom is not there, or differs
            said = str(error.cause or error).strip().splitlines()[-1]
            raise FedloomError(
                f"lanes: a Ray actor cannot work: {said}; is fedloom installed on all machines?"
            ) from None
        except errors.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                said = str(error).strip().splitlines()[-1]
                raise FedloomError(
                    f"lanes: a Ray actor cannot be made: {said}; is the same fedloom installed on all machines?"
                ) from None
            return None
        except errors.RayError:
            return None

    def end(self, lane: int) -> None:
        self._answers.pop(lane, None)
        with suppress(Exception):  # it is dead, or its machine is
            self._ray.kill(self._actors.pop(lane))

    def close(self, waiting: Sequence[int]) -> None:
        for lane in list(self._actors):
            if lane in waiting:
                self._cluster.waiting.append(self._actors.pop(lane))
            else:
                self.end(lane)


class Lane:
    """The actor."""

    def __init__(self) -> None:
        self._resident = Resident()

    def answer(self, order: Mapping[str, Any], common: Bytes | None, values: Sequence[Bytes]) -> Answer:
        return self._resident.answer(order, common, values)
