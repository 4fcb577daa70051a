"""A Ray cluster: joining or starting one, and explaining why it has no room for a role."""

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
"""Address for a cluster that is started on this machine, and ends with its driver."""
CONNECT_SECONDS = 5.0  # Ray itself would retry for two minutes, and then exit the process
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Start of an HTTP/2 and so of a gRPC connection: a preface and a settings frame, answered by a settings
frame."""
ANSWER_SECONDS = 1.0  # timeout for asking the head for draining nodes; delays a Ctrl-C
IN_ORDER = (1, 3, 4)
"""Codes of a node's death in Ray's NodeDeathInfo for a clean end: terminated as expected, or drained."""
STORE_BYTES = 100 << 20  # object store of a local cluster, which holds no rows; Ray's minimum is 75 MB


def check(address: str) -> None:
    """Check early, without importing Ray, that a run can use this address.

    Raises:
        MissingExtra: if Ray is not installed.
        ConfigError: if the address is invalid, or other nodes could not reach the store.
        TrinityError: if no cluster responds there.
    """
    if find_spec("ray") is None:
        raise MissingExtra("ray", "ray")
    if address == LOCAL:
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"--ray {address!r:.120}: use HOST:PORT as printed by `ray start --head`, or {LOCAL}."
        )
    if not os.environ.get("TRINITY_DB_URL"):
        raise ConfigError(
            f"--ray {address}: the embedded server serves only this machine; set TRINITY_DB_URL to a server "
            f"that all machines of the cluster can reach, or use --ray {LOCAL}."
        )
    try:
        speaks = _speaks_grpc(host.strip("[]"), int(port))
    except OSError as error:
        raise TrinityError(
            f"--ray {address}: no cluster responds ({error}); start one with `ray start --head`, or use "
            f"--ray {LOCAL}."
        ) from error
    if not speaks:
        raise TrinityError(
            f"--ray {address}: the server there is not a Ray cluster; use the address printed by "
            "`ray start --head`, not that of the dashboard."
        )


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Within this `with`, be a driver of the cluster, or of a cluster started here.

    Raises:
        TrinityError: if Ray refuses, for example because the cluster has another version of Ray or Python.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports from a cluster started here
    import ray

    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces it
    started = {"include_dashboard": False, "object_store_memory": STORE_BYTES} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **started)
    except (OSError, RuntimeError, ValueError) as error:
        raise TrinityError(
            f"--ray {address}: Ray does not accept this process: {first_line(error)}"
        ) from error
    signal.signal(signal.SIGTERM, handler)
    if _question_of_draining() is None:
        logger.warning("Ray %s does not report draining nodes: roles end with their nodes", ray.__version__)
    try:
        yield
    finally:
        ray.shutdown()


def has_gpus() -> bool:
    """Whether a node of the cluster has a GPU now."""
    return bool(_totals().get("GPU"))


def draining() -> dict[str, int] | None:
    """Return nodes that are about to leave, with the time in milliseconds since the epoch (0: unknown). None:
    the head does not respond.

    Empty for a version of Ray that does not support it; `joined` has logged that.
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
    """Return Ray's private call for it, as used by Ray Serve; `ray._private.state` has no timeout."""
    import ray

    client = ray._private.worker.global_worker.gcs_client
    return getattr(client, "get_draining_nodes", None)


def is_cut_off(node: str) -> bool:
    """Whether Ray has given up a node that did not shut down cleanly: processes there may still run."""
    import ray

    match = next((entry for entry in ray.nodes() if entry["NodeID"] == node), None)
    return match is None or not (match["Alive"] or match["DeathReason"] in IN_ORDER)


def shortage(needs: Mapping[str, float]) -> str:
    """Describe which resources the cluster lacks for a role on one node, as the end of a sentence."""
    import ray

    totals, free = _totals(), ray.available_resources()
    short = [name for name, amount in needs.items() if free.get(name, 0) < amount]
    if not short:
        return "no machine of the cluster has all of that free"
    amounts = ", ".join(
        f"{max(0.0, free.get(name, 0)):g} {name} free of {totals.get(name, 0):g}" for name in short
    )
    return f"the cluster has {amounts}"


def _speaks_grpc(host: str, port: int) -> bool:
    """Whether a gRPC server responds, as a cluster's head does. Not checked with TLS."""
    with socket.create_connection((host, port), CONNECT_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return True
        connection.sendall(GREETING)
        return connection.recv(4)[3:] == b"\x04"  # type of the first frame: settings


def first_line(error: BaseException) -> str:
    """Return the first line of an error message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _totals() -> dict[str, Any]:
    import ray

    totals: dict[str, Any] = ray.cluster_resources()
    return totals
