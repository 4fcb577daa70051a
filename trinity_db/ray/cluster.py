"""A Ray cluster: join one or start one on this machine, and say why it has no room for a role."""

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from trinity_db.errors import ConfigError, MissingExtra, TrinityError

logger = logging.getLogger(__name__)

LOCAL = "local"
"""The address of a cluster that is started on this machine, and ends with its driver."""
CONNECT_SECONDS = 5.0  # Ray itself tries an address for two minutes, and then ends the process
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How HTTP/2, and so gRPC, begins: a preface and a frame of settings, which the server answers alike."""
ANSWER_SECONDS = 1.0  # for the head to say which machines are to go; a Ctrl-C waits so long
IN_ORDER = (1, 3, 4)
"""Reasons of a machine's death, as Ray numbers them in NodeDeathInfo: it was told to end, or drained."""
STORE_BYTES = 100 << 20  # of a local cluster's object store, which no row goes through; Ray's least is 75 MB


def check(address: str) -> None:
    """Find out early, without importing Ray, what would stop a run at this address.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: it is no address, or other machines could not reach the store.
        TrinityError: no cluster answers there.
    """
    if find_spec("ray") is None:
        raise MissingExtra("ray", "ray")
    if address == LOCAL:
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"--ray {address!r:.120}: take HOST:PORT as `ray start --head` prints it, or {LOCAL}."
        )
    if not os.environ.get("TRINITY_DB_URL"):
        raise ConfigError(
            f"--ray {address}: the embedded server serves one machine; name a server that all machines of "
            f"the cluster reach in TRINITY_DB_URL, or take --ray {LOCAL}."
        )
    try:
        speaks = _speaks_grpc(host.strip("[]"), int(port))
    except OSError as error:
        raise TrinityError(
            f"--ray {address}: no cluster answers ({error}); start one by `ray start --head`, or take "
            f"--ray {LOCAL}."
        ) from error
    if not speaks:
        raise TrinityError(
            f"--ray {address}: what answers is no cluster; take the address that `ray start --head` prints, "
            "not that of the dashboard."
        )


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Be a driver of the cluster, or of one that is started here.

    Raises:
        TrinityError: Ray refuses, for example because the cluster has another version of Ray or Python.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start tells no one of it
    import ray

    handler = signal.getsignal(signal.SIGTERM)  # Ray puts its own in the place
    started = {"include_dashboard": False, "object_store_memory": STORE_BYTES} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **started)
    except (OSError, RuntimeError, ValueError) as error:
        raise TrinityError(
            f"--ray {address}: Ray does not let this process in: {first_line(error)}"
        ) from error
    signal.signal(signal.SIGTERM, handler)
    if _question_of_draining() is None:
        logger.warning(
            "Ray %s does not say which machines are to go: their roles end with them", ray.__version__
        )
    try:
        yield
    finally:
        ray.shutdown()


def has_gpus() -> bool:
    """Whether a machine of the cluster has a GPU now."""
    return bool(_totals().get("GPU"))


def draining() -> dict[str, int] | None:
    """Nodes that are to go soon, and when: in milliseconds since the epoch; 0: not known. None: the head is
    silent.

    Empty with a version of Ray that cannot be asked: `joined` has said so.
    """
    import ray

    ask = _question_of_draining()
    if ask is None:
        return {}
    try:
        return dict(ask(timeout=ANSWER_SECONDS))
    except ray.exceptions.RpcError:
        return None


def _question_of_draining() -> Callable[..., Mapping[str, int]] | None:
    """Ray has no public way to ask. Ray Serve asks the same client; `ray._private.state` takes no timeout."""
    import ray

    client = ray._private.worker.global_worker.gcs_client
    return getattr(client, "get_draining_nodes", None)


def is_cut_off(node: str) -> bool:
    """Whether Ray has given a machine up that did not say goodbye: what runs there may not know of it."""
    import ray

    found = next((one for one in ray.nodes() if one["NodeID"] == node), None)
    return found is None or not (found["Alive"] or found["DeathReason"] in IN_ORDER)


def shortage(needs: Mapping[str, float]) -> str:
    """What the cluster lacks for a role that asks for so much on one machine, as the end of a sentence."""
    import ray

    totals, free = _totals(), ray.available_resources()
    short = [name for name, amount in needs.items() if free.get(name, 0) < amount]
    if not short:
        return "no machine of the cluster has all of that free"
    said = ", ".join(
        f"{max(0.0, free.get(name, 0)):g} {name} free of {totals.get(name, 0):g}" for name in short
    )
    return f"the cluster has {said}"


def _speaks_grpc(host: str, port: int) -> bool:
    """Whether a server of gRPC answers, as a cluster's head is. One that speaks TLS is not asked."""
    with socket.create_connection((host, port), CONNECT_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return True
        connection.sendall(GREETING)
        return connection.recv(4)[3:] == b"\x04"  # the first frame has settings


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _totals() -> dict[str, Any]:
    import ray

    totals: dict[str, Any] = ray.cluster_resources()
    return totals
