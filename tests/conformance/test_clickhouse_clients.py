"""ClickHouse's own clients for Node, Go and Java, of exact versions and unchanged, ask its interface over the embedded
engine. Python's is tried with each change (`tests/unit/billing_jobs/clickhouse/test_interface.py`).

The first run installs them: `tests/conformance/environments.py`. Each script of `clients/` runs once.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from benchmarks.environments import NotInstalled
from tests.conformance.environments import CLICKHOUSE_GO, CLICKHOUSE_JDBC, CLICKHOUSE_NODE, Seen, run_client
from tests.unit.billing_jobs.clickhouse.interface_world import ROWS, World, served

INSTALLING_S = 1_500
pytestmark = [pytest.mark.long, pytest.mark.timeout(INSTALLING_S)]

NODE, GO, JDBC = CLICKHOUSE_NODE, CLICKHOUSE_GO, CLICKHOUSE_JDBC
See = Callable[[str, str], Any]
SUMMED = [100_000, sum(range(100_000))]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    world = World(tmp_path_factory.mktemp("billing"))
    with closing(world), served(world) as url:
        yield {"CLICKHOUSE_URL": url, "CLICKHOUSE_USER": "acme", "CLICKHOUSE_KEY": world.keys["acme"]}


@pytest.fixture(scope="module")
def see(settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> See:
    """What a client got of an ability. Fails as the client failed; skips where it cannot be installed."""
    ran: dict[str, Seen | NotInstalled] = {}

    def run(client: str) -> Seen | NotInstalled:
        try:
            return run_client(client, client.replace("-", "_"), settings, tmp_path_factory.mktemp(client))
        except NotInstalled as why:
            return why

    def see(client: str, ability: str) -> Any:
        if client not in ran:
            ran[client] = run(client)
        told = ran[client]
        if isinstance(told, NotInstalled):
            pytest.skip(f"{client} could not be installed: {told}")
        assert "failed" not in told[ability], told[ability]["failed"]
        return told[ability]["seen"]

    return see


@pytest.mark.parametrize("client", [NODE, GO, JDBC])
def test_it_connects_also_with_more_patience_than_a_statement_may_have(see: See, client: str) -> None:
    assert see(client, "connects") == [True, True]


@pytest.mark.parametrize("client", [NODE, GO, JDBC])
def test_a_question_with_parameters_is_answered_for_the_tenant(see: See, client: str) -> None:
    assert see(client, "asks") == ["tiny", 30 * ROWS["acme"], "0.0004164", None, "2025-11-21"]


@pytest.mark.parametrize("client", [NODE, GO, JDBC])
def test_many_rows_come_packed_and_not(see: See, client: str) -> None:
    assert see(client, "streams") == SUMMED
    packed = see(client, "packs")
    assert len(packed) > 1
    assert all(each == SUMMED for each in packed)


@pytest.mark.parametrize("client", [NODE, GO, JDBC])
def test_an_error_has_its_code(see: See, client: str) -> None:
    assert see(client, "fails") == {"table": [60, "UNKNOWN_TABLE"], "key": [516, "AUTHENTICATION_FAILED"]}


@pytest.mark.parametrize("client", [NODE, GO])
def test_who_gives_up_is_answered_the_next_time(see: See, client: str) -> None:
    assert see(client, "gives_up") == [True, 1]


def test_node_reads_each_format(see: See) -> None:
    assert see(NODE, "formats") == [[{"one": 1, "text": "a,b"}], '1,"a,b"']


def test_go_reads_all_columns_and_structs(see: See) -> None:
    assert see(GO, "binds") == [ROWS["acme"], "usage_id"]
    assert see(GO, "selects") == ["tiny", ROWS["acme"], 0, "Sluice"]


def test_java_gets_back_what_it_puts_in(see: See) -> None:
    assert see(JDBC, "binds") == ["it's \\ a {brace:Int8}\n?", "-1.25", "2025-01-02 03:04:05.0", None, True]


def test_tools_fill_their_menus_over_jdbc(see: See) -> None:
    menus = see(JDBC, "menus")
    assert "sluice" in menus["schemas"]
    assert "tables" not in menus["schemas"]
    assert menus["tables"] == [
        "delivered_counts", "invoice_lines", "invoiced_usage", "invoices", "ledger", "price_intervals", "prices",
        "usage", "usage_by_day", "usage_by_hour", "usage_by_month", "usage_live",
    ]  # fmt: skip
    assert {"model", "currency", "valid_from", "output_pico"} <= set(menus["columns"])
    assert (menus["keys"], menus["kinds"], menus["types"], menus["functions"]) == ([], True, True, ["toDate"])


def test_jdbc_foresees_the_columns_of_a_prepared_statement(see: See) -> None:
    assert see(JDBC, "foresees") == ["model", "Decimal(76, 12)"]
