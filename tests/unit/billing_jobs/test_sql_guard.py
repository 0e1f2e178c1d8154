"""The operator's SELECT reaches tables and nothing else: every attack is refused by the guard, and run past it, by the
engine where the engine can."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.queries import Reader, read_settings
from billing_jobs.sql_guard import MAX_SQL_CHARS, SqlRefused, check_select
from billing_jobs.store import Database, StoreError

SECRET_FILE = "/etc/passwd"

ATTACKS = [
    # Reading files.
    f"SELECT * FROM file('{SECRET_FILE}', 'LineAsString')",
    f"SELECT file('{SECRET_FILE}')",
    f"SELECT FILE ('{SECRET_FILE}')",
    f"SELECT `file`('{SECRET_FILE}')",
    f"SELECT \"file\"\n('{SECRET_FILE}')",
    f"SELECT file/**/('{SECRET_FILE}')",
    f"SELECT file -- \n ('{SECRET_FILE}')",
    f"SELECT * APPLY(file) FROM (SELECT '{SECRET_FILE}')",
    f"SELECT * APPLY file FROM (SELECT '{SECRET_FILE}')",
    f"SELECT arrayMap(x -> file(x), ['{SECRET_FILE}'])",
    f"SELECT * FROM '{SECRET_FILE}'",
    f"SELECT * FROM default.`{SECRET_FILE}`",
    f"SELECT * FROM `default`.`{SECRET_FILE}`",
    f"SELECT 1 WHERE 'x' IN file('{SECRET_FILE}', 'LineAsString')",
    f"WITH a AS (SELECT * FROM file('{SECRET_FILE}', 'LineAsString')) SELECT * FROM a",
    f"SELECT (SELECT count() FROM fileCluster('x', '{SECRET_FILE}', 'LineAsString'))",
    "SELECT * FROM filesystem('/etc')",
    "SELECT * FROM sqlite('/tmp/x.db', 'y')",
    "SELECT * FROM Python(settings)",
    # Reaching the network, or running programs.
    "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
    "SELECT * FROM s3('http://127.0.0.1:1/bucket/x')",
    "SELECT * FROM remote('127.0.0.1', 'system', 'one')",
    "SELECT * FROM remoteSecure('127.0.0.1', system, one)",
    "SELECT * FROM mysql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT * FROM postgresql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT * FROM hdfs('hdfs://127.0.0.1:1/x')",
    "SELECT * FROM executable('id', 'LineAsString', 'a String')",
    "SELECT * FROM eval('SELECT 1')",
    "SELECT * FROM cluster('default', system.one)",
    "SELECT hasColumnInTable('127.0.0.1', 'user', 'password', 'db', 'table', 'column')",
    "SELECT aiGenerate('x')",
    # Writing.
    "SELECT 1 INTO OUTFILE '/tmp/sluice-attack.txt'",
    "SELECT 1 into\noutfile '/tmp/sluice-attack.txt'",
    "INSERT INTO usage_events SELECT * FROM usage_events",
    "WITH x AS (SELECT 1) INSERT INTO prices SELECT * FROM x",
    "DROP TABLE usage_events",
    "TRUNCATE TABLE prices",
    "ALTER TABLE usage_events DELETE WHERE 1",
    "OPTIMIZE TABLE usage_events FINAL",
    "CREATE TABLE z (a Int8) ENGINE = Memory",
    "ATTACH DATABASE etc ENGINE = Filesystem('/etc')",
    "SYSTEM SHUTDOWN",
    "KILL QUERY WHERE 1",
    "BACKUP TABLE prices TO File('/tmp/sluice-attack')",
    "SET readonly = 0",
    "USE system",
    # Around the limits.
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT 1 SETTINGS max_execution_time = 0",
    "SELECT 1; DROP TABLE prices",
    "SELECT 1;;",
    "SELECT 1 FORMAT Native",
    "SELECT 1 -- comment",
    "SELECT $$file$$",
    "SELECT \u2018file\u2019",
    "SELECT 'unclosed",
    "SELECT 1 # comment",
    "SELECT {x:String}",
    "SELECT 'a\x00' \x00",
    "",
    "   ;",
    "(SELECT 1)",
    "SELECT " + "1," * MAX_SQL_CHARS + "1",
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda text: text[:60])
def test_an_attack_is_refused(attack: str) -> None:
    with pytest.raises(SqlRefused):
        check_select(attack)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "select model, sum(cost_pico) from usage group by model;",
        "WITH x AS (SELECT 1 AS a) SELECT a FROM x",
        "SELECT 'file(''/etc/passwd'')', 'it\\'s', \"quoted name\" FROM (SELECT 2 AS \"quoted name\")",
        "SELECT count() FROM numbers(10) WHERE number IN (1, 2e3, 0x1F) AND number - 1 >= -1",
        "SELECT arrayMap(x -> x + 1, [1, 2])[1], 1 ? 2 : 3, t.1 FROM (SELECT tuple(1) AS t)",
        "SELECT toStartOfHour(accepted_at) AS h, `model` FROM sluice.usage_events FINAL LIMIT 5 BY h",
        "SELECT 'SELECT 1; DROP TABLE x -- /* into outfile */'",
    ],
)
def test_an_honest_query_passes_unchanged(query: str) -> None:
    assert check_select(f"  {query} \n") == query.removesuffix(";")


def test_what_the_engine_has_on_top_is_refused_too() -> None:
    assert check_select("SELECT * FROM newSource('x')")
    with pytest.raises(SqlRefused, match="newsource"):
        check_select("SELECT * FROM newSource('x')", ["newSource"])


@given(st.text(max_size=200))
def test_any_text_is_either_refused_or_a_single_select(text: str) -> None:
    try:
        accepted = check_select(text)
    except SqlRefused:
        return
    assert accepted.lstrip().lower().startswith(("select", "with"))


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_a_file_function_cannot_be_hidden_behind_any_prefix(prefix: str) -> None:
    """Unless the prefix makes a string of it, which runs nothing."""
    try:
        check_select(f"SELECT {prefix} file('/etc/passwd')")
    except SqlRefused:
        return
    assert "'" in prefix


# -- against the engine ------------------------------------------------------------------------------------------------


@pytest.fixture
def reader(database: Database) -> Iterator[Reader]:
    with closing(Reader(database.connection(read_settings(max_rows=5, timeout_s=60)), max_rows=5)) as opened:
        yield opened


@pytest.fixture
def hasty(database: Database) -> Iterator[Reader]:
    with closing(Reader(database.connection(read_settings(max_rows=5, timeout_s=0.5)), max_rows=5)) as opened:
        yield opened


def test_attacks_do_nothing_to_a_running_engine(reader: Reader, tmp_path: Path) -> None:
    for attack in ATTACKS:
        with pytest.raises(SqlRefused):
            reader.sql(attack)
    assert not Path("/tmp/sluice-attack.txt").exists()
    assert reader.sql("SELECT count() AS rows FROM prices").rows == [["0"]]


def test_every_table_function_of_the_engine_is_refused_or_harmless(reader: Reader) -> None:
    names = reader.sql("SELECT count() FROM system.table_functions WHERE name NOT IN ('numbers', 'values')").rows
    assert int(names[0][0]) > 50
    for name in ("merge", "loop", "dictionary", "mergeTreeIndex", "icebergLocal", "redis"):
        with pytest.raises(SqlRefused):
            reader.sql(f"SELECT * FROM {name}('a', 'b')")


def test_writes_are_refused_by_the_engine_even_past_the_guard(database: Database) -> None:
    settings = read_settings(max_rows=5, timeout_s=60)
    for statement in (
        "INSERT INTO schema_version (version) VALUES (9)",
        "DROP TABLE prices",
        "SELECT 1 SETTINGS readonly = 0",
        f"SELECT * FROM file('{SECRET_FILE}', 'LineAsString')",
        "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
    ):
        with closing(database.connection(settings)) as connection:
            with pytest.raises(StoreError) as refused, connection.client() as client:
                client.raw_query(statement)
            assert refused.value.code == 164, statement


def test_time_memory_and_rows_are_limited(reader: Reader, hasty: Reader) -> None:
    with pytest.raises(StoreError) as late:
        hasty.sql("SELECT count() FROM numbers(1000000000000)")
    assert late.value.code == 159
    with pytest.raises(StoreError) as greedy:
        hasty.sql("SELECT length(groupArray(number)) FROM numbers(1000000000)")
    assert greedy.value.code in (159, 241)
    result = reader.sql("SELECT number FROM numbers(100)")
    assert (result.rows, result.truncated) == ([["0"], ["1"], ["2"], ["3"], ["4"]], True)
    exact = reader.sql("SELECT number AS n, 1.5 AS x, toDecimal64(1, 2) AS d FROM numbers(5)")
    assert (exact.columns, exact.types, exact.truncated) == (
        ["n", "x", "d"],
        ["UInt64", "Float64", "Decimal(18, 2)"],
        False,
    )
    assert exact.rows[4] == ["4", 1.5, "1"]
