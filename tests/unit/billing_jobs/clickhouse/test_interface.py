"""ClickHouse's HTTP interface as its clients use it: over sockets, with readers in processes of their own."""

import base64
import gzip
import os
import signal
import socket
import struct
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, get_args

import backports.zstd as zstd
import clickhouse_connect
import httpx
import lz4.block
import lz4.frame
import orjson
import pytest
from clickhouse_cityhash.cityhash import CityHash128

from billing_jobs.clickhouse import native
from billing_jobs.clickhouse.access import OF_TENANTS
from billing_jobs.clickhouse.blocks import in_blocks
from billing_jobs.clickhouse.server import MAX_OF_TENANT
from billing_jobs.clickhouse.snapshots import Snapshots
from billing_jobs.queries import read_settings
from billing_jobs.reconciliation.figures import Key, Source, Span
from billing_jobs.reconciliation.tables import Tables
from billing_jobs.reconciliation.wiring import asking
from billing_jobs.sql_guard import MAX_SQL_CHARS
from billing_jobs.store import StoreError
from deploy.tenants_file import create_api_key, revoke_key
from streams.clocks import HOUR_MS
from streams.directory import Role
from tests.unit.billing_jobs.clickhouse.interface_world import OPERATORS, ROWS, TIMEOUT_S, Analyst, World
from tests.unit.billing_jobs.events import NOON_MS


def test_who_asks_nothing_is_told_that_somebody_is_there(url: str) -> None:
    assert httpx.get(f"{url}/ping").text == "Ok.\n"
    assert httpx.get(f"{url}/replicas_status").text == "Ok.\n"


def test_a_tenants_analyst_sees_its_rows_and_the_operator_sees_all(acme: Analyst, operator: Analyst) -> None:
    by_tenant = "SELECT tenant_id, count() FROM usage GROUP BY tenant_id ORDER BY tenant_id"
    assert acme.rows(by_tenant) == [["acme", str(ROWS["acme"])]]
    assert operator.rows(by_tenant) == [[name, str(rows)] for name, rows in sorted(ROWS.items())]
    assert operator.rows("SELECT worker_id, engine_ms FROM compute_records")[0] == ["worker-1", "700"]
    assert operator.rows("SELECT DISTINCT pool FROM worker_presence") == [["default"]]


def test_a_tenants_analyst_reads_its_own_invoices_and_ledger(acme: Analyst, operator: Analyst) -> None:
    rows = str(ROWS["acme"])
    assert acme.rows("SELECT invoice_id, number, total FROM invoices") == [["acme-2025-11-USD", "1", "0"]]
    assert acme.rows("SELECT count(), sum(quantity) FROM invoice_lines WHERE class = 'output'") == [
        ["1", str(30 * ROWS["acme"])]
    ]
    assert acme.rows("SELECT count(), sum(cost_pico) = (SELECT sum(cost_pico) FROM usage) FROM invoiced_usage") == [
        [rows, "1"]
    ]
    assert acme.rows("SELECT kind, reason, is_invoiced FROM ledger WHERE kind = 'credit'") == [
        ["credit", "for acme", "1"]
    ]
    for hidden in ("actor FROM ledger", "actor FROM invoices", "stored_before FROM invoices"):
        assert acme.refusal(f"SELECT {hidden}")[1] == 47
    for table in ("invoice_closings", "ledger_entries", "invoice_usage", "counting_closings"):
        assert acme.refusal(f"SELECT * FROM {table}")[1] == 60
        assert operator.ask(f"SELECT * FROM {table}").status_code == 200
    everybodys = operator.rows("SELECT tenant_id, actor FROM invoices ORDER BY tenant_id")
    assert everybodys == [["acme", "kim"], ["globex", "kim"]]


def test_sums_of_hours_are_a_tenants_own_whether_they_are_summed_or_not(
    world: World, acme: Analyst, operator: Analyst
) -> None:
    """Its hour was summed before; in an hour that another tenant writes to all are read from their events."""
    for period in ("hour", "day", "month"):
        by_tenant = f"SELECT tenant_id, sum(requests) FROM usage_by_{period} GROUP BY tenant_id ORDER BY tenant_id"
        assert acme.rows(by_tenant) == [["acme", str(ROWS["acme"])]]
        assert operator.rows(by_tenant)[:2] == [[name, str(rows)] for name, rows in sorted(ROWS.items())]
    assert operator.rows("SELECT countIf(kind = 'figures'), countIf(kind = 'rolled') FROM usage_hours") == [["2", "1"]]
    world.add("umbrella", 3)
    while ["umbrella", "3"] not in operator.rows(by_tenant):
        threading.Event().wait(0.05)
    assert acme.rows(by_tenant) == [["acme", str(ROWS["acme"])]]
    assert acme.rows("SELECT is_estimate FROM usage_live") == []
    assert ["hours"] not in operator.rows("SHOW DATABASES")


def test_what_is_inserted_is_seen_soon(world: World, operator: Analyst) -> None:
    question = "SELECT count() FROM usage WHERE tenant_id = 'initech'"
    assert operator.rows(question) == [["0"]]
    world.add("initech", 3)
    deadline = threading.Event()
    while operator.rows(question) != [["3"]]:
        deadline.wait(0.05)


def test_who_compares_with_the_log_may_ask_all_that_it_asks(world: World, operator: Analyst) -> None:
    """Over its own connection and over this interface it is told the same."""

    def ask(text: str) -> list[list[Any]]:
        assert len(text) < MAX_SQL_CHARS
        answer = operator.ask(f"{text} FORMAT JSONCompact", output_format_json_quote_64bit_integers=1)
        assert answer.status_code == 200, answer.text
        found: list[list[Any]] = orjson.loads(answer.content)["data"]
        return found

    span = Span(NOON_MS, NOON_MS + HOUR_MS)
    with closing(world.database.connection(read_settings(10_000, 10))) as connection:
        over_http, within = Tables(ask, page_rows=7), Tables(asking(connection))
        key = Key("acme", NOON_MS)
        used = ("acme", "chat.completions", "standard", "local")
        price = within.prices().at("tiny", used, 0)
        assert price is not None
        assert over_http.prices().at("tiny", used, 0) == price
        for source in get_args(Source)[:4]:
            figures = within.figures(source, span, 1)
            assert figures[key].rows > 0
            assert over_http.figures(source, span, 1) == figures
            parts = within.figures(source, span, 1, frozenset([key]), buckets=True)
            assert over_http.figures(source, span, 1, frozenset([key]), buckets=True) == parts
            items = [*within.items(source, span, 1, key)]
            assert [*over_http.items(source, span, 1, key)] == items
            ids = [placed.item.item_id for placed in items] * 9
            assert over_http.elsewhere(source, key, ids) == within.elsewhere(source, key, ids)
            assert [*over_http.items(source, span, 1, min(parts))] == [*within.items(source, span, 1, min(parts))]
        assert over_http.beyond_released(span) == within.beyond_released(span) == []
        assert over_http.hours_apart({NOON_MS}) == within.hours_apart({NOON_MS}) == []


def test_python_s_client_works_as_it_is(world: World, url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    client = clickhouse_connect.get_client(
        host=host, port=int(port), username="acme", password=world.keys["acme"], database="sluice"
    )
    try:
        found = client.query(
            "SELECT model, sum(output_tokens) AS tokens, sum(cost) AS cost FROM usage WHERE choice = {choice:UInt32}"
            " GROUP BY model",
            parameters={"choice": 0},
        )
        assert found.column_names == ("model", "tokens", "cost")
        [(model, tokens, cost)] = found.result_rows
        assert (model, tokens) == ("tiny", 30 * ROWS["acme"])
        assert cost > 0
        assert client.query("SELECT usage_id FROM usage WHERE 0").result_rows == []
        assert client.command("SELECT count() FROM usage") == ROWS["acme"]
        assert client.query_arrow("SELECT usage_id FROM usage").num_rows == ROWS["acme"]
        with pytest.raises(clickhouse_connect.driver.exceptions.DatabaseError, match="UNKNOWN_TABLE"):
            client.query("SELECT * FROM nothing_of_the_kind")
    finally:
        client.close()


def test_a_wrong_password_opens_nothing(world: World, url: str) -> None:
    for user, password in [
        ("acme", ""), ("acme", "wrong"), ("acme", world.keys["globex"]), ("globex", world.keys["acme"]),
        ("operator", world.keys["acme"]), ("acme", OPERATORS), ("acme", world.chat_key), ("*", OPERATORS),
    ]:  # fmt: skip
        with Analyst(url, user, password) as stranger:
            status, code, text = stranger.refusal("SELECT 1")
        assert (status, code) == (403, 516), user
        assert "AUTHENTICATION_FAILED" in text
        assert password == "" or password not in text


def test_the_password_may_come_in_each_way_in_which_clients_send_it(world: World, url: str) -> None:
    key = world.keys["acme"]
    one = {"query": "SELECT 1"}
    for headers, address in (
        ({"X-ClickHouse-User": "acme", "X-ClickHouse-Key": key}, one),
        ({"Authorization": f"Bearer {key}"}, one),
        ({}, {**one, "user": "acme", "password": key}),
    ):
        assert httpx.get(url, headers=headers, params=address).text == "1\n"


def test_a_revoked_key_opens_nothing_any_more(world: World, url: str) -> None:
    key = create_api_key(world.tenants, "globex", "leaver", role=Role.ANALYST)
    wait = threading.Event()
    with Analyst(url, "globex", key) as analyst:
        while analyst.ask("SELECT 1").status_code != 200:
            wait.wait(0.1)
        revoke_key(world.tenants, "globex", "leaver")
        while analyst.ask("SELECT 1").status_code == 200:
            wait.wait(0.1)
        assert analyst.refusal("SELECT 1")[1] == 516


def test_the_rows_of_a_statement_are_described_before_it_is_run(acme: Analyst) -> None:
    """As drivers of JDBC do for a statement that is prepared."""
    for statement in (
        "DESC (SELECT model, cost FROM usage WHERE tenant_id = NULL)",
        "describe table\n(SELECT model, cost FROM usage -- the last comment\n);",
        "DESCRIBE (SELECT model, cost FROM (SELECT * FROM usage))",
        "DESCRIBE (WITH all AS (SELECT * FROM usage) SELECT model, cost FROM all)",
    ):
        described = [row[:2] for row in acme.rows(statement)]
        assert described == [["model", "LowCardinality(String)"], ["cost", "Decimal(76, 12)"]], statement
    assert acme.refusal("DESC (SELECT 1 FROM)")[1] == 62


def test_a_client_is_told_a_name_that_is_not_the_machines(acme: Analyst) -> None:
    [[name, revision]] = acme.rows("SELECT displayName(), revision()")
    assert name == "Sluice"
    assert int(revision) > native.SINCE


def test_a_client_that_names_its_protocol_reads_native_as_it_does(acme: Analyst) -> None:
    statement = "SELECT 1 AS one FORMAT Native"
    plain = acme.ask(statement).content
    assert plain == b"\x01\x01\x03one\x05UInt8\x01"
    assert acme.ask(statement, client_protocol_version=54_405).content == plain
    for version in ("", "-1", "x", "9" * 99):
        assert acme.ask(statement, client_protocol_version=version).content == plain
    newer = b"\x01\x00\x02\xff\xff\xff\xff\x00\x01\x01\x03one\x05UInt8\x00\x01"
    assert acme.ask(statement, client_protocol_version=54_460).content == newer
    assert acme.ask("SELECT 1 AS one", client_protocol_version=54_460, default_format="Native").content == newer
    assert acme.ask("SELECT 1 AS one", client_protocol_version=54_460, default_format="CSV").text == "1\n"
    refused = acme.refusal("SELECT sumState(1) FORMAT Native", client_protocol_version=54_460)
    assert refused[:2] == (501, 48)


def test_the_answer_says_what_it_is(acme: Analyst) -> None:
    answer = acme.ask("SELECT 1 AS one FORMAT JSONEachRow", query_id="mine")
    assert answer.json() == {"one": 1}
    assert answer.headers["content-type"] == "application/json; charset=UTF-8"
    assert answer.headers["x-clickhouse-format"] == "JSONEachRow"
    assert answer.headers["x-clickhouse-query-id"] == "mine"
    assert orjson.loads(answer.headers["x-clickhouse-summary"])["result_rows"] == "1"
    assert acme.ask("SELECT 1 AS one", default_format="CSVWithNames").text == '"one"\n1\n'


def test_a_statement_may_begin_in_the_address_and_go_on_in_the_body(acme: Analyst) -> None:
    answer = acme.http.post("/", params={"query": "SELECT 1 +"}, content=b"2")
    assert answer.text == "3\n"
    assert acme.http.get("/", params={"query": "SELECT {n:UInt8} + 1", "param_n": "2"}).text == "3\n"


def test_a_parameter_may_be_the_set_that_something_is_in(acme: Analyst) -> None:
    statement = (
        "SELECT count() FROM usage WHERE model IN {models:Array(String)} AND tenant_id IN ({tenant:String}, 'x')"
    )
    assert acme.rows(statement, param_models="['tiny', 'other']", param_tenant="acme") == [[str(ROWS["acme"])]]


def test_an_answer_is_packed_as_asked(acme: Analyst) -> None:
    statement = "SELECT number FROM numbers(1000)"
    plain = acme.ask(statement).content
    zipped = acme.http.post(
        "/", params={"enable_http_compression": 1}, headers={"Accept-Encoding": "gzip"}, content=statement
    )
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.content == plain
    asked = acme.http.build_request(
        "POST", "/", params={"enable_http_compression": 1}, headers={"Accept-Encoding": "lz4"}, content=statement
    )
    framed = acme.http.send(asked, stream=True)
    assert framed.headers["content-encoding"] == "lz4"
    assert lz4.frame.decompress(b"".join(framed.iter_raw())) == plain
    framed.close()
    blocks = acme.ask(statement, compress=1).content
    high, low, method, packed_bytes, plain_bytes = struct.unpack_from("<QQBII", blocks)
    assert (high << 64 | low, method) == (CityHash128(blocks[16:]), 0x82)
    assert packed_bytes == len(blocks) - 16
    assert lz4.block.decompress(blocks[25:], uncompressed_size=plain_bytes) == plain


def test_a_packed_statement_is_read_and_one_that_swells_is_not(acme: Analyst) -> None:
    sent = {"Content-Encoding": "gzip"}
    assert acme.http.post("/", headers=sent, content=gzip.compress(b"SELECT 1")).text == "1\n"
    bomb = acme.http.post("/", headers=sent, content=gzip.compress(b" " * 50_000_000))
    assert (bomb.status_code, bomb.headers["x-clickhouse-exception-code"]) == (413, "307")
    broken = acme.http.post("/", headers={"Content-Encoding": "lz4"}, content=b"SELECT 1")
    assert broken.headers["x-clickhouse-exception-code"] == "271"


def test_a_statement_may_come_in_clickhouse_s_own_blocks(acme: Analyst) -> None:
    def code(content: bytes, **headers: str) -> str:
        answer = acme.http.post("/", params={"decompress": 1}, content=content, headers=headers)
        return str(answer.headers.get("x-clickhouse-exception-code", answer.text))

    text = b"SELECT 1 + 1"
    lz4_block = in_blocks(text)
    assert code(lz4_block) == "2\n"
    assert code(in_blocks(b"SELECT 1 +") + in_blocks(b" 2")) == "3\n"
    assert code(_block(0x02, text, len(text))) == "2\n"
    assert code(_block(0x90, zstd.compress(text), len(text))) == "2\n"
    assert code(gzip.compress(lz4_block), **{"Content-Encoding": "gzip"}) == "2\n"
    for broken in (text, lz4_block[:-1], lz4_block[:20], b"x" + lz4_block[1:], _block(0x77, text, len(text)),
                   _block(0x82, b"no LZ4 at all", 99), _block(0x90, b"no ZSTD at all", 99)):  # fmt: skip
        assert code(broken) == "271"
    for bomb in (_block(0x82, b"x", 2**32 - 1), in_blocks(b" " * 50_000_000),
                 _block(0x90, zstd.compress(b" " * 2**25), 2**25),
                 b"".join(in_blocks(b" " * 200_000) for _ in range(99))):  # fmt: skip
        assert code(bomb) == "307"
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    wide = packer.compress(text) + packer.flush()
    assert code(_block(0x90, wide, len(text))) == "271", "a window of 128 MiB"
    assert code(wide, **{"Content-Encoding": "zstd"}) == "271"
    assert code(_block(0x90, zstd.compress(b" " * 2**25), 9)) == "62", "no more than it says of itself is unpacked"


def _block(method: int, packed: bytes, plain_bytes: int) -> bytes:
    block = struct.pack("<BII", method, len(packed) + 9, plain_bytes) + packed
    checksum = CityHash128(block)
    return struct.pack("<QQ", checksum >> 64, checksum & 0xFFFF_FFFF_FFFF_FFFF) + block


def test_errors_are_clickhouse_s_own(acme: Analyst) -> None:
    for statement, status, code, name in [
        ("SELECT", 400, 62, "SYNTAX_ERROR"),
        ("SELECT nothing FROM usage", 404, 47, "UNKNOWN_IDENTIFIER"),
        ("SELECT * FROM nothing", 404, 60, "UNKNOWN_TABLE"),
        ("SELECT 1 FORMAT Nothing", 404, 73, "UNKNOWN_FORMAT"),
        ("SELECT toDate('x')", 400, 38, "CANNOT_PARSE_DATE"),
        ("SELECT {x:UInt8}", 500, 456, "UNKNOWN_QUERY_PARAMETER"),
    ]:
        said = acme.refusal(statement)
        assert said[:2] == (status, code), said
        assert said[2].startswith(f"Code: {code}. DB::Exception: ")
        assert said[2].endswith(f"({name})\n")
    assert acme.refusal("SELECT 1", database="nothing")[1] == 81


def test_a_statement_has_its_time_and_others_are_answered_meanwhile(world: World, url: str, acme: Analyst) -> None:
    """Of the second the engine's own limit knows nothing: it looks between blocks, and this is one."""
    for statement in (
        "SELECT count() FROM numbers(1000000000000)",
        "SELECT sum(editDistance(repeat('a', 60000), repeat('b', 60000))) FROM numbers(1000)",
    ):
        said: list[tuple[int, int, str]] = []
        asking = threading.Thread(target=lambda text=statement, heard=said: heard.append(acme.refusal(text)))
        asking.start()
        with Analyst(url, "globex", world.keys["globex"]) as other:
            assert other.rows("SELECT count() FROM usage") == [[str(ROWS["globex"])]]
        asking.join()
        assert said[0][:2] == (408, 159)
        assert acme.rows("SELECT count() FROM usage") == [[str(ROWS["acme"])]]


def test_a_reader_that_dies_is_followed_by_another(world: World, acme: Analyst) -> None:
    for pid in _readers():
        os.kill(pid, signal.SIGKILL)
    answers = [acme.ask("SELECT count() FROM usage") for _ in range(4)]
    assert {answer.status_code for answer in answers} <= {200, 500}
    assert acme.rows("SELECT count() FROM usage") == [[str(ROWS["acme"])]]
    folders = list((world.settings.data_dir / "clickhouse-snapshots").iterdir())
    assert len(folders) <= world.settings.billing.readers + 1, "one of each, and the operator's"


def test_who_hangs_up_leaves_nothing_running(world: World, url: str, acme: Analyst) -> None:
    acme.rows("SELECT 1")
    before = set(_readers())
    with Analyst(url, "globex", world.keys["globex"]) as impatient:
        impatient.http.timeout = httpx.Timeout(0.3)
        with pytest.raises(httpx.ReadTimeout):
            impatient.ask("SELECT count() FROM numbers(1000000000000)")
    wait = threading.Event()
    # Where the engine ends a statement by itself its process lives on.
    while before <= set(_readers()):
        wait.wait(0.05)
    assert acme.rows("SELECT count() FROM usage") == [[str(ROWS["acme"])]]


def _readers() -> list[int]:
    """Processes of this test's server that answer."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"billing_jobs.clickhouse.reader" in path.read_bytes()
        and int((path.parent / "stat").read_text().rsplit(")", 1)[1].split()[1]) == os.getpid()
    ]


def test_a_reader_holds_none_of_billings_secrets(acme: Analyst, monkeypatch: pytest.MonkeyPatch) -> None:
    acme.rows("SELECT 1")
    for pid in _readers():
        names = {each.split(b"=")[0] for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if each}
        assert names <= {b"PATH", b"LANG", b"TZ", b"LD_LIBRARY_PATH", b"PYTHONPATH", b"TMPDIR"}


def test_the_engines_time_is_bounded_whatever_is_asked(acme: Analyst) -> None:
    assert acme.refusal("SELECT 1 SETTINGS max_execution_time = 600")[1] == 452
    assert acme.refusal("SELECT 1 SETTINGS max_execution_time = 0")[1] == 452
    for seconds in ("1", "600", "0", "inf"):
        assert acme.rows("SELECT 1", max_execution_time=seconds) == [["1"]], "a client's own patience"
        assert acme.refusal("SELECT count() FROM numbers(1000000000000)", max_execution_time=seconds)[:2] == (408, 159)
    assert TIMEOUT_S < 600


def test_one_tenant_holds_no_more_than_its_places(world: World, url: str, acme: Analyst) -> None:
    """It shows its key, and then sends nothing of its statements."""
    host, port = url.removeprefix("http://").split(":")
    key = base64.b64encode(f"globex:{world.keys['globex']}".encode()).decode()
    head = f"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {key}\r\nContent-Length: 100\r\n\r\n"
    said = []
    with ExitStack() as stack:
        for _ in range(MAX_OF_TENANT + 5):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            connection.sendall(head.encode() + b"S")
            said.append(connection)
        refused = [connection.recv(200).startswith(b"HTTP/1.1 503") for connection in said[MAX_OF_TENANT:]]
        assert all(refused)
        assert acme.rows("SELECT 1") == [["1"]], "others have theirs"


def test_what_a_process_before_left_is_in_no_snapshot(tmp_path: Path) -> None:
    left = tmp_path / "clickhouse" / "shadow" / "snapshot_1"
    left.mkdir(parents=True)
    (tmp_path / "snapshots" / "old").mkdir(parents=True)
    nobody: Any = None
    Snapshots(nobody, tmp_path / "clickhouse", tmp_path / "snapshots")
    assert not left.exists()
    assert list((tmp_path / "snapshots").iterdir()) == []


def test_a_snapshot_that_cannot_be_made_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = world.settings.data_dir / "broken-snapshots"

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Snapshots, "_lay_out", no_room)
    with closing(Snapshots(world.database.connection(), world.settings.data_dir / "clickhouse", folder)) as snapshots:
        with pytest.raises(StoreError, match="No space left"):
            snapshots.take(OF_TENANTS.layout)
        assert list(folder.iterdir()) == []
        assert list((world.settings.data_dir / "clickhouse" / "shadow").glob("snapshot_*")) == []


def test_a_table_is_described_however_its_name_is_quoted(acme: Analyst) -> None:
    plain = acme.rows("DESCRIBE TABLE sluice.prices")
    for name in ("prices", "`prices`", '"prices"', "`sluice`.`prices`", "sluice.`prices`", '"sluice".prices;'):
        assert acme.rows(f"desc table {name}") == plain, name
    for name in ("`prices", "prices`", '`prices"', "`sluice.prices`", "`tables`.`usage_events`"):
        acme.refusal(f"DESCRIBE {name}")


def test_a_statement_that_was_packed_in_pieces_is_read_whole(acme: Analyst) -> None:
    """Its first piece is one too."""
    for encoding, pack in (("gzip", gzip.compress), ("lz4", lz4.frame.compress), ("zstd", zstd.compress)):
        pieces = pack(b"SELECT number FROM numbers(10) ") + pack(b"WHERE number = 5")
        assert acme.http.post("/", headers={"Content-Encoding": encoding}, content=pieces).text == "5\n", encoding


def test_half_a_packed_statement_is_none(acme: Analyst) -> None:
    """Its first half is one too: `SELECT 1`, and then `WHERE …`."""
    for encoding, pack in (("gzip", gzip.compress), ("lz4", lz4.frame.compress), ("zstd", zstd.compress)):
        packed = pack(b"SELECT 1 FROM numbers(10) WHERE number = 5" + os.urandom(64).hex().encode())
        answer = acme.http.post("/", headers={"Content-Encoding": encoding}, content=packed[:-8])
        assert answer.headers["x-clickhouse-exception-code"] == "271", encoding
