"""Which addresses are those of a cluster, and what a person hears of others."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.others.ray.conftest import Machines
from trinity_db.errors import TrinityError
from trinity_db.ray import cluster


@pytest.fixture
def page() -> Iterator[str]:
    """The address of a server that speaks HTTP, as Ray's dashboard does."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(autouse=True)
def _shared_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", "postgresql://db.example.org/trinity")


def test_the_address_of_a_cluster_will_do(machines: Machines) -> None:
    cluster.check(machines.address)


def test_the_address_of_a_dashboard_is_refused_at_once(page: str) -> None:
    with pytest.raises(TrinityError, match="the server there is not a Ray cluster; use the address"):
        cluster.check(page)


def test_a_port_where_nothing_answers_is_refused_at_once() -> None:
    with pytest.raises(TrinityError, match="no cluster responds"):
        cluster.check("127.0.0.1:1")
