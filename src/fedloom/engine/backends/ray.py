"""A transport to Ray actors, one core each, on all machines of a cluster.

Joins the cluster at RAY_ADDRESS, or one that runs on this machine; without either, Ray is started here for the run. The
broadcast is put into Ray's object store once and fetched once by each machine. Ray moves Python objects with pickle, which
is safe only among machines that trust each other; fedloom sends JSON-like orders and bytes, and never unpickles a file.
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

from fedloom.engine.backends.blueprint import Answer, BuiltWorker
from fedloom.engine.backends.fork import cores
from fedloom.engine.buffers import Bytes
from fedloom.errors import FedloomError
from fedloom.extras import install

# Defaults, unless the environment sets them: no telemetry, no warnings, few retries.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "2",
}
PATIENCE = 10.0  # seconds to wait for an answer at RAY_ADDRESS


class Cluster:
    """A connection to Ray, with the actors that are kept for the next run."""

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
        _check_listening(os.environ.get("RAY_ADDRESS", ""))
        logging.getLogger("ray").setLevel(logging.ERROR)
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        try:
            try:
                self.ray.init(address="auto", **quiet)
            except ConnectionError:
                if os.environ.get("RAY_ADDRESS"):
                    raise
                single_node = {"num_cpus": cores(), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
                self.ray.init(address="local", **single_node, **quiet)
        except (ConnectionError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            address = os.environ.get("RAY_ADDRESS", "this machine")
            reason = str(error).strip().splitlines()[0]
            raise FedloomError(f"workers: Ray cannot be reached at {address}: {reason}") from None
        finally:
            if main:
                signal.signal(signal.SIGTERM, before)  # Ray replaces the handler that stops a run at a safe point

    def workers(self, device: str) -> int:
        """One worker per core of the cluster, or per accelerator."""
        kind = "CPU" if device == "cpu" else "GPU"
        count = int(self.ray.cluster_resources().get(kind, 0))
        if not count:
            raise FedloomError(f"workers: the Ray cluster has no {kind}, and a worker needs one")
        return count

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
    """A connection to the cluster, shared with enclosing blocks."""
    global _cluster
    with kept():
        if _cluster is None or not _cluster.ray.is_initialized():
            _cluster = Cluster()
        yield _cluster


@contextmanager
def kept() -> Iterator[None]:
    """Runs inside the block share one connection and reuse each other's actors."""
    global _cluster, _keepers
    _keepers += 1
    try:
        yield
    finally:
        _keepers -= 1
        if not _keepers and _cluster is not None:
            finished, _cluster = _cluster, None
            finished.leave()


def _check_listening(address: str) -> None:
    """Refuse a HOST:PORT where nothing listens; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except OSError as error:
        raise FedloomError(
            f"workers: Ray cannot be reached at {address} ({error.strerror or error}); set RAY_ADDRESS to the cluster's head, "
            f"or unset it to use this machine"
        ) from None


def installed() -> bool:
    return find_spec("ray") is not None


def check() -> None:
    if not installed():
        raise FedloomError(f"workers: ray needs Ray on every machine; install it with: {install('ray')}")


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
        self._make = self._ray.remote(Actor).options(
            **needs, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self._actors: dict[int, Any] = {}
        self._answers: dict[int, Any] = {}
        self._common: tuple[str, Any] = "", None

    def start(self, worker: int) -> None:
        self._actors[worker] = self._cluster.waiting.pop() if self._cluster.waiting else self._make.remote()

    def send(
        self, worker: int, order: dict[str, Any], common: tuple[str, Bytes] | None, values: Sequence[Bytes]
    ) -> None:
        if common is not None and common[0] != self._common[0]:
            self._common = common[0], self._ray.put(common[1])
        shared = None if common is None else self._common[1]
        self._answers[worker] = self._actors[worker].answer.remote(order, shared, list(values))

    def wait(self, workers: Sequence[int], seconds: float) -> list[int]:
        worker_of = {self._answers[worker]: worker for worker in workers}
        first, rest = self._ray.wait(list(worker_of), num_returns=1, timeout=seconds)
        more = self._ray.wait(rest, num_returns=len(rest), timeout=0)[0] if first and rest else []
        return [worker_of[answer] for answer in [*first, *more]]

    def receive(self, worker: int) -> Answer | None:
        errors = self._ray.exceptions
        try:
            answer: Answer = self._ray.get(self._answers.pop(worker))
            return answer
        except errors.RayTaskError as error:  # a failing task would answer with its error: this is a failing import
            reason = str(error.cause or error).strip().splitlines()[-1]
            raise FedloomError(
                f"workers: a Ray actor cannot work: {reason}; is fedloom installed on all machines?"
            ) from None
        except errors.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                reason = str(error).strip().splitlines()[-1]
                raise FedloomError(
                    f"workers: a Ray actor cannot be created: {reason}; is the same fedloom installed on all machines?"
                ) from None
            return None
        except errors.RayError:
            return None

    def end(self, worker: int) -> None:
        self._answers.pop(worker, None)
        with suppress(Exception):  # the actor or its machine may be dead
            self._ray.kill(self._actors.pop(worker))

    def close(self, waiting: Sequence[int]) -> None:
        for worker in list(self._actors):
            if worker in waiting:
                self._cluster.waiting.append(self._actors.pop(worker))
            else:
                self.end(worker)


class Actor:
    """A worker in an actor's process."""

    def __init__(self) -> None:
        self._worker = BuiltWorker()

    def answer(self, order: Mapping[str, Any], common: Bytes | None, values: Sequence[Bytes]) -> Answer:
        return self._worker.answer(order, common, values)
