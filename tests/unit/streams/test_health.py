"""The probes and metrics of a process, over a real socket."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from streams.health import MAX_CONNECTIONS, MAX_HEAD_BYTES, HealthServer


class Process:
    def __init__(self) -> None:
        self.why: str | None = None


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def server(process: Process) -> Iterator[HealthServer]:
    registry = CollectorRegistry()
    Gauge("in_work", "What a scraper reads.", registry=registry).set(7)
    server = HealthServer("127.0.0.1", 0, lambda: process.why, registry)
    yield server
    server.close()


def get(server: HealthServer, path: str, method: str = "GET") -> httpx.Response:
    return httpx.request(method, f"http://127.0.0.1:{server.port}{path}", timeout=60, trust_env=False)


def test_a_probe_learns_whether_it_lives_and_whether_it_is_ready(server: HealthServer, process: Process) -> None:
    assert get(server, "/readyz").text == "ready"
    process.why = "reading workers"
    answer = get(server, "/readyz")
    assert (answer.status_code, answer.text) == (503, "reading workers")
    assert get(server, "/livez").status_code == 200
    assert get(server, "/readyz", "HEAD").status_code == 503
    assert get(server, "/elsewhere").status_code == 404
    assert get(server, "/readyz", "POST").status_code == 405


def test_a_scraper_gets_the_metrics(server: HealthServer) -> None:
    assert "in_work 7.0" in get(server, "/metrics").text


def test_slow_scrapers_hold_up_no_probe(server: HealthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.health.DEADLINE_S", 3_600)  # None of them is given up.
    with ExitStack() as held:
        for _ in range(2 * MAX_CONNECTIONS):
            slow = held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            slow.sendall(b"GET /metrics HT")
        assert get(server, "/readyz").status_code == 200


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * MAX_HEAD_BYTES * 2, b"\0" * 100_000])
def test_who_sends_too_much_is_cut_off(server: HealthServer, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        try:
            client.sendall(head)
            assert client.recv(1) == b""
        except ConnectionError:
            pass
    assert get(server, "/livez").status_code == 200


def test_it_listens_where_it_is_told(process: Process) -> None:
    server = HealthServer("0.0.0.0", 0, lambda: process.why, CollectorRegistry())
    try:
        own = socket.gethostbyname(socket.gethostname())
        url = f"http://{own}:{server.port}/readyz"
        assert httpx.get(url, timeout=60, trust_env=False).status_code == 200
    finally:
        server.close()
    with pytest.raises(httpx.ConnectError):
        get(server, "/livez")
