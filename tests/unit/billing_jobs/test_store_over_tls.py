"""A ClickHouse server is reached over TLS, with a password beside the address."""

import base64
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from billing_jobs.store import Database, StoreError
from streams.settings import BillingSettings, Settings
from tests.certificates import Authority


class Server:
    """Speaks TLS, refuses every query, and keeps who asked."""

    def __init__(self, authority: Authority) -> None:
        self.users: list[str] = []
        seen = self.users

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                seen.append(base64.b64decode(self.headers["Authorization"].partition(" ")[2]).decode())
                answer = b"Code: 516. DB::Exception: refused by the test. (AUTHENTICATION_FAILED)"
                self.send_response(403)
                self.send_header("X-ClickHouse-Exception-Code", "516")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        pair = authority.pair("server")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
        context.load_cert_chain(pair.certificate, pair.key)
        context.verify_mode = ssl.CERT_REQUIRED
        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.url = f"https://billing@localhost:{self.http.server_port}/sluice"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Iterator[Server]:
    server = Server(authority)
    thread = threading.Thread(target=server.http.serve_forever)
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join(timeout=60)


def settings(server: Server, authority: Authority, **wrong: Any) -> Settings:
    pair = authority.pair("client")
    fields = {
        "clickhouse_url": server.url, "clickhouse_password": "hunter2", "clickhouse_ca_file": authority.certificate,
        "clickhouse_certificate_file": pair.certificate, "clickhouse_key_file": pair.key,
    }  # fmt: skip
    return Settings(billing=BillingSettings.model_validate(fields | wrong))


def test_it_proves_itself_and_so_does_the_server(server: Server, authority: Authority) -> None:
    with pytest.raises(StoreError, match="refused by the test"):
        Database.from_settings(settings(server, authority)).open()
    assert set(server.users) == {"billing:hunter2"}


def test_a_server_that_nobody_vouches_for_is_told_nothing(server: Server, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", "a stranger").certificate
    with pytest.raises(StoreError, match=r"certificate|SSL"):
        Database.from_settings(settings(server, authority, clickhouse_ca_file=stranger)).open()
    assert server.users == []
