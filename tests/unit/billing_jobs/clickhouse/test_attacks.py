"""A tenant's analyst tries to see more than its own rows, the machine, or the network. Each attempt is refused, or
shows nothing that is not its own; and the same through the gate's back: what stands behind it is asked directly.
"""

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from billing_jobs.clickhouse.access import OF_TENANTS, Limits
from billing_jobs.clickhouse.asks import Ask
from billing_jobs.clickhouse.errors import ClickHouseFailed
from billing_jobs.clickhouse.fence import version_of_kernel
from billing_jobs.clickhouse.reading_process import ReadingProcess
from billing_jobs.clickhouse.snapshots import Snapshots
from tests.unit.billing_jobs.clickhouse.interface_world import ROWS, Analyst, World

REFUSED = """
SELECT file('/etc/passwd')
SELECT FILE('/etc/passwd')
SELECT `file`('/etc/passwd')
SELECT arrayMap(file, ['/etc/passwd'])
SELECT arrayMap(x -> file(x), ['/etc/passwd'])
SELECT * APPLY(file) FROM (SELECT '/etc/passwd')
SELECT * APPLY(x -> file(x)) FROM (SELECT '/etc/passwd')
SELECT * REPLACE(file('/etc/passwd') AS a) FROM (SELECT 1 AS a)
SELECT COLUMNS('a') APPLY(file) FROM (SELECT '/etc/passwd' AS a)
SELECT 1 WHERE file('/etc/passwd') != ''
SELECT 1 FROM usage PREWHERE file('/etc/passwd') != ''
SELECT 1 FROM usage ORDER BY file('/etc/passwd')
SELECT 1 FROM usage LIMIT length(file('/etc/passwd'))
SELECT sum(choice) OVER (ORDER BY file('/etc/passwd')) FROM usage
WITH file('/etc/passwd') AS secret SELECT secret
SELECT {f:Identifier}('/etc/passwd')
SELECT * FROM file('/etc/passwd', 'LineAsString')
SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')
SELECT * FROM s3('http://127.0.0.1:1/x')
SELECT * FROM remote('127.0.0.1', system.one)
SELECT * FROM cluster('default', system.one)
SELECT * FROM merge('tables', '.*')
SELECT * FROM loop(tables.usage_events)
SELECT * FROM mergeTreeIndex(tables, usage_events)
SELECT * FROM executable('id', 'LineAsString', 'x String')
SELECT * FROM python('os')
SELECT * FROM Python(x)
SELECT * FROM sqlite('/tmp/sluice-attack', 't')
SELECT * FROM mysql('127.0.0.1:1', 'a', 'b', 'c', 'd')
SELECT * FROM input('x String')
SELECT * FROM format(LineAsString, 'x')
SELECT * FROM dictionary('x')
SELECT * FROM view(SELECT * FROM tables.usage_events)
SELECT * FROM viewIfPermitted(SELECT * FROM tables.usage_events ELSE null('x Int8'))
DESCRIBE url('http://127.0.0.1:1/')
DESCRIBE TABLE tables.usage_events
DESCRIBE (SELECT * FROM tables.usage_events)
DESC (SELECT * FROM tables.usage_events)
DESC (SELECT file('/etc/passwd'))
DESC (SELECT (SELECT * FROM file('/etc/passwd', 'LineAsString')))
DESC (SELECT 1), (SELECT * FROM tables.usage_events)
DESC (SELECT 1) UNION ALL (SELECT * FROM tables.usage_events)
DESC (SELECT 1 SETTINGS log_comment = 'globex')
DESC (SELECT 1 INTO OUTFILE '/tmp/sluice-attack')
DESC (SELECT 1; SELECT 2)
DESC (DESC (SELECT * FROM tables.usage_events))
DESC (INSERT INTO FUNCTION file('/tmp/sluice-attack') SELECT 1)
DESCRIBE TABLE (SELECT 1) FORMAT CSV SETTINGS log_comment = 'globex'
SELECT * FROM tables.usage_events
SELECT * FROM `tables`.`usage_events`
SELECT * FROM usage_events
SELECT * FROM tables.compute_records
SELECT * FROM tables.worker_presence
SELECT * FROM tables.usage_hours
SELECT * FROM usage_hours
SELECT * FROM hours.summed
SELECT 1 IN hours.summed
DESCRIBE hours.summed
SELECT * FROM compute_records
SELECT * FROM worker_presence
SELECT * FROM gpu_costs
SELECT * FROM gpu_prices
SELECT * FROM tables.gpu_prices
SELECT * FROM price_changes
SELECT * FROM tables.price_changes
SELECT * FROM margins
SELECT * FROM price_timeline
SELECT * FROM tables.prices
SELECT reason FROM price_intervals
SELECT 1 IN tables.usage_events
SELECT 1 IN {h:Identifier}
SELECT usage_id GLOBAL NOT IN {h:Identifier} FROM usage
SELECT in(usage_id, {h:Identifier}) FROM usage
SELECT 1 IN {h:identifier}
SELECT 'x' IN (SELECT worker_id FROM tables.usage_events)
SELECT * FROM usage WHERE usage_id IN tables.usage_events
SELECT * FROM usage AS u JOIN tables.usage_events AS e ON u.usage_id = e.usage_id
SELECT (SELECT count() FROM tables.usage_events)
SELECT 1 UNION ALL SELECT count() FROM tables.usage_events
SELECT 1 FROM usage WHERE EXISTS (SELECT 1 FROM tables.usage_events)
WITH usage_events AS (SELECT 1) SELECT * FROM tables.usage_events
SELECT worker_id FROM usage
SELECT encryption_key_id FROM usage
SELECT * FROM system.parts
SELECT * FROM system.processes
SELECT * FROM system.query_log
SELECT * FROM system.users
SELECT * FROM system.grants
SELECT * FROM system.row_policies
SELECT * FROM system.settings_changes
SELECT * FROM system.disks
SELECT * FROM system.clusters
SELECT * FROM system.stack_trace
SELECT * FROM system.server_settings
SELECT * FROM system.asynchronous_metrics
WITH parts AS (SELECT 1) SELECT * FROM system.parts
SELECT getSetting('log_comment')
SELECT hostName()
SELECT serverUUID()
SELECT getMacro('x')
SELECT getServerPort('tcp_port')
SELECT buildId()
SELECT dictGet('d', 'a', 1)
SELECT joinGet('tables.usage_events', 'worker_id', 'x')
SELECT hasColumnInTable('tables', 'usage_events', 'worker_id')
SELECT evalMLMethod(1)
SELECT catboostEvaluate('/x', 1)
SELECT addressToLine(1)
SELECT formatRow('Template', 1)
SELECT aiGenerate('x', 'y')
SELECT sleep(3)
SELECT sleepEachRow(3) FROM usage
SELECT 1 SETTINGS log_comment = 'globex'
SELECT 1 SETTINGS readonly = 0
SELECT 1 SETTINGS additional_table_filters = {'tables.usage_events': '1'}
SELECT 1 SETTINGS dialect = 'prql'
SELECT 1 SETTINGS max_memory_usage = 0
SELECT 1 SETTINGS max_memory_usage = 1000000000000
SELECT 1 SETTINGS format_schema = '/etc/passwd'
SELECT * FROM (SELECT 1 SETTINGS log_comment = 'globex')
SELECT 1 FORMAT Template
SELECT 1 FORMAT Protobuf
SELECT 1 INTO OUTFILE '/tmp/sluice-attack'
SELECT 1 INTO OUTFILE '/tmp/sluice-attack' AND STDOUT
SELECT 1 INTO OUTFILE '/tmp/sluice-attack' APPEND FORMAT CSV
SELECT 1; SELECT 2
SELECT 1; DROP TABLE usage
SELECT 1; SELECT throwIf(1, file('/etc/passwd')) /* 'DescribeQuery' */
SELECT 1; SELECT 'x' INTO OUTFILE '/tmp/sluice-attack' TRUNCATE FORMAT RawBLOB /* 'DescribeQuery' */
SELECT 1; CREATE VIEW sluice.evil AS SELECT 1 /* does not support JSON serialization 'DescribeQuery' */
DESCRIBE TABLE usage; SELECT file('/etc/passwd')
DESCRIBE TABLE usage SETTINGS max_threads = 1
DESCRIBE usage FORMAT JSONEachRowWithProgress
DESCRIBE usage FORMAT Template
DESCRIBE system.parts
SELECT dumpColumnStructure(key_id) FROM usage
SELECT lowCardinalityKeys(key_id) FROM usage
SELECT blockSerializedSize(key_id) FROM usage
SELECT byteSize(key_id) FROM usage
SELECT arrayReduce('groupFormat(\'CSV\')', [1, 2])
SELECT arrayReduce('aggThrow(1)', [1, 2])
SELECT arrayReduce(concat('aggThrow', '(1)'), [1, 2])
SELECT initializeAggregation('flameGraph', 1)
SELECT CAST(unhex('00'), 'AggregateFunction(sum, UInt8)')
SELECT unhex('00')::AggregateFunction(uniq, UInt8)
SELECT * FROM values('x AggregateFunction(uniq, UInt8)', unhex('00'))
SELECT {s:AggregateFunction(uniq, UInt8)}
SELECT reinterpret(unhex('00'), 'SimpleAggregateFunction(sum, UInt64)')
SELECT d.* FROM system.stack_trace AS d, (WITH stack_trace AS (SELECT 1) SELECT 1) AS z
SELECT 1 SETTINGS max_memory_usage = 1000
exit
quit
SET log_comment = 'globex'
USE tables
INSERT INTO usage SELECT * FROM usage
INSERT INTO FUNCTION file('/tmp/sluice-attack') SELECT 1
CREATE TABLE x (a Int8) ENGINE = Memory
CREATE TEMPORARY TABLE x (a Int8)
CREATE FUNCTION f AS () -> file('/etc/passwd')
CREATE USER x
CREATE NAMED COLLECTION x AS a = 1
DROP TABLE usage
TRUNCATE TABLE usage
ALTER TABLE usage DELETE WHERE 1
OPTIMIZE TABLE tables.usage_events
ATTACH TABLE x FROM '/etc'
DETACH TABLE usage
RENAME TABLE usage TO x
EXCHANGE TABLES usage AND prices
GRANT ALL ON *.* TO default
REVOKE ALL ON *.* FROM default
SYSTEM SHUTDOWN
SYSTEM STOP MERGES
KILL QUERY WHERE 1
BACKUP TABLE usage TO File('/tmp/sluice-attack')
RESTORE TABLE usage FROM File('/tmp/sluice-attack')
EXPLAIN SELECT 1
EXPLAIN TABLE OVERRIDE mysql('a', 'b', 'c', 'd')
CHECK TABLE tables.usage_events
SHOW CREATE TABLE usage
SHOW GRANTS
SHOW ACCESS
SHOW PROCESSLIST
SHOW USERS
EXISTS TABLE tables.usage_events
BEGIN TRANSACTION
UNDROP TABLE x
DELETE FROM usage WHERE 1
UPDATE usage SET choice = 1 WHERE 1
MOVE x
WATCH usage
EXECUTE AS x SELECT 1
PARALLEL WITH SELECT 1
COPY usage TO '/tmp/sluice-attack'
""".strip().splitlines()

STATES = r"""
SELECT finalizeAggregation(sumState(1))
SELECT FINALIZEAGGREGATION(sumState(1))
SELECT initializeAggregation('sumState', 1)
SELECT runningAccumulate(s) FROM (SELECT sumState(number) AS s FROM numbers(2) GROUP BY number)
SELECT sumMerge(s) FROM (SELECT sumState(1) AS s)
SELECT sumMergeState(s) FROM (SELECT sumState(1) AS s)
SELECT sumMergeIf(s, 1) FROM (SELECT sumState(1) AS s)
SELECT arrayReduce('sumMerge', [sumState(1)])
SELECT * APPLY(sumMerge) FROM (SELECT sumState(1))
SELECT toTypeName(CAST(unhex('0500000000000000'), 'Aggregate' || 'Function(sum, UInt8)'))
WITH 'AggregateFunction(sum, UInt8)' AS t SELECT CAST(unhex('0500000000000000'), t)
SELECT CAST(unhex('0500000000000000'), {a:String})
SELECT CAST(unhex('0500000000000000'), (SELECT 'AggregateFunction(sum, UInt8)'))
SELECT CAST(unhex('0500000000000000'), '`Aggregate\\x46unction`(sum, UInt8)')
SELECT {s:`Aggregate\x46unction`(sum, UInt8)}
SELECT CAST(map('a', unhex('0500000000000000')), concat('Map(String, Aggregate', 'Function(sum, UInt8))'))
SELECT _CAST(unhex('0500000000000000'), concat('Aggregate', 'Function(sum, UInt8)'))
SELECT accurateCast(unhex('0500000000000000'), concat('Aggregate', 'Function(sum, UInt8)'))
SELECT accurateCastOrNull(1, concat('UInt', '8'))
SELECT accurateCastOrDefault(1, concat('UInt', '8'))
SELECT defaultValueOfTypeName(concat('Aggregate', 'Function(sum, UInt8)'))
SELECT reinterpret(unhex('0500000000000000'), concat('Simple', 'AggregateFunction(sum, UInt64)'))
SELECT JSONExtract('{}', 'a', concat('Aggregate', 'Function(sum, UInt8)'))
SELECT JSONExtractKeysAndValues('{}', concat('Int', '8'))
SELECT arrayMap(t -> CAST(unhex('0500000000000000'), t), ['AggregateFunction(sum, UInt8)'])
SELECT arrayMap(_CAST, [unhex('0500000000000000')], ['AggregateFunction(sum, UInt8)'])
SELECT _CAST(*) FROM (SELECT unhex('0500000000000000'), 'AggregateFunction(sum, UInt8)')
SELECT * APPLY(CAST('AggregateFunction(sum, UInt8)')) FROM (SELECT unhex('0500000000000000'))
SELECT * FROM values('x Aggre' || 'gateFunction(sum, UInt8)', unhex('0500000000000000'))
SELECT * FROM values({a:String}, unhex('0500000000000000'))
SELECT * FROM null('x Aggre' || 'gateFunction(sum, UInt8)')
""".strip().splitlines()
"""Of aggregate functions, made up: whoever reads one trusts it. The type may be written so that it is not seen."""
SEES_ITS_OWN_ALONE = """
SELECT DISTINCT tenant_id FROM usage
SELECT tenant_id FROM usage WHERE 1 OR tenant_id = 'globex'
SELECT tenant_id FROM usage WHERE tenant_id = 'globex'
SELECT tenant_id FROM usage_by_hour
SELECT tenant_id FROM usage_by_day
SELECT tenant_id FROM usage_by_month
SELECT tenant_id FROM usage_by_hour WHERE 1 OR tenant_id = ''
SELECT tenant_id FROM delivered_counts
SELECT tenant_id FROM invoices
SELECT JSONExtractString(document, 'tenant_id') FROM invoices
SELECT tenant_id FROM invoice_lines
SELECT tenant_id FROM invoiced_usage
SELECT tenant_id FROM ledger
SELECT tenant_id FROM prices WHERE tenant_id != ''
SELECT tenant_id FROM price_intervals WHERE specificity > 0
SELECT max(tenant_id) FROM usage
SELECT tenant_id FROM usage WHERE tenant_id IN {s:Array(String)}
SELECT tenant_id FROM usage WHERE tenant_id NOT IN {h:String}
SELECT tenant_id FROM usage AS a LEFT JOIN usage AS b ON a.model = b.model
WITH all AS (SELECT * FROM usage) SELECT tenant_id FROM all
WITH usage AS (SELECT * FROM sluice.usage) SELECT tenant_id FROM usage
SELECT tenant_id FROM {t:Identifier}
SELECT tenant_id FROM (SELECT throwIf(tenant_id = 'globex'), tenant_id FROM usage)
SELECT tenant_id FROM usage WHERE NOT throwIf(tenant_id = 'globex')
SELECT tenant_id FROM usage WHERE intDiv(1, tenant_id = 'acme') = 1
SELECT tenant_id FROM usage ORDER BY throwIf(tenant_id = 'globex')
""".strip().splitlines()
"""Nor does an error tell of others: what is asked of each row is asked of one's own alone."""
NAMED = {"param_t": "usage", "param_h": "tables.usage_events", "param_s": "['acme', 'globex']"}


@pytest.mark.parametrize("statement", REFUSED)
def test_it_is_refused(acme: Analyst, statement: str) -> None:
    status, _, text = acme.refusal(statement, param_f="file", param_h="tables.usage_events")
    assert 400 <= status < 500 or "SETTING_CONSTRAINT_VIOLATION" in text, text
    assert "root:" not in text
    assert "globex" not in text.replace(statement, "")


def test_a_type_that_is_written_out_is_one(acme: Analyst) -> None:
    for statement in (
        "SELECT CAST('1', 'UInt8')", "SELECT CAST('1' AS Nullable(UInt8))", "SELECT '1'::UInt8", "SELECT {n:UInt8}",
        "SELECT accurateCastOrNull('1', 'UInt8')", "SELECT accurateCastOrDefault('1', 'UInt8', 0::UInt8)",
        "SELECT JSONExtract('{\"a\": [1]}', 'a', 1, 'UInt8')", "SELECT CAST('a', 'Enum8(\\'a\\' = 1)')::UInt8",
        "SELECT x FROM values('x UInt8', 1)", "SELECT c1 FROM values((1, 'AggregateFunction'), (1, 'b')) LIMIT 1",
        "SELECT arrayReduce('max', [1])",
    ):  # fmt: skip
        assert acme.rows(statement, param_n="1") == [["1"]], statement


@pytest.mark.parametrize("statement", STATES)
def test_no_state_is_made_up_or_read(acme: Analyst, statement: str) -> None:
    """Before the engine looks at it."""
    status, code, text = acme.refusal(statement, param_a="AggregateFunction(sum, UInt8)", param_s="x")
    assert (status, code) == (403, 497), text
    assert " accepted" in text


def test_states_that_are_made_in_a_statement_are_read_by_none(acme: Analyst) -> None:
    """What is said of them names what was asked for."""
    text = acme.refusal("SELECT uniqMerge(u) FROM (SELECT uniqState(model) AS u FROM usage)")[2]
    assert "function uniqMerge is not accepted" in text


@pytest.mark.parametrize("statement", SEES_ITS_OWN_ALONE)
def test_it_shows_what_is_its_own(acme: Analyst, statement: str) -> None:
    assert {row[0] for row in acme.rows(statement, **NAMED)} <= {"acme"}


def test_of_prices_it_sees_those_for_all_and_its_own(acme: Analyst, operator: Analyst) -> None:
    for view in ("prices", "price_intervals"):
        statement = f"SELECT tenant_id FROM {view} ORDER BY tenant_id"
        assert acme.rows(statement) == [[""], ["acme"]]
        assert operator.rows(statement) == [[""], ["acme"], ["globex"]]


def test_no_file_came_of_it() -> None:
    """Of the attempts above."""
    assert not Path("/tmp/sluice-attack").exists()
    assert not Path("/tmp/sluice-attack").exists()


@pytest.mark.parametrize(
    "name",
    [
        "JSONEachRowWithProgress", "Template", "MySQLWire", "PostgreSQLWire", "Protobuf", "CustomSeparated", "Hash",
        "JSON\0", "CSV; SELECT 1", "",
    ],
)  # fmt: skip
def test_a_format_of_the_address_is_looked_at_as_one_of_a_statement(acme: Analyst, name: str) -> None:
    for statement in ("SELECT count() FROM usage", "DESCRIBE usage"):
        answer = acme.ask(statement, default_format=name)
        assert answer.status_code == (404 if name else 200)
        told = acme.http.post("/", content=statement, headers={"X-ClickHouse-Format": name.replace("\0", "")})
        assert "progress" not in told.text


def test_what_was_let_through_is_looked_at_again_with_other_parameters(acme: Analyst) -> None:
    statement = "SELECT DISTINCT tenant_id FROM {t:Identifier}"
    for _ in range(2):
        assert acme.rows(statement, param_t="usage") == [["acme"]]
        assert acme.refusal(statement, param_t="tables.usage_events")[1] == 60


def test_other_databases_are_asked_in_by_nobody(acme: Analyst) -> None:
    for database in ("system", "tables", "information_schema", "nothing"):
        assert acme.refusal("SELECT 1", database=database)[1] == 81
    statement = "SELECT d.* FROM stack_trace AS d, (WITH stack_trace AS (SELECT 1) SELECT 1) AS z"
    assert acme.refusal(statement)[1] == 60
    assert acme.rows("SELECT 1", database="default") == [["1"]]


@pytest.mark.parametrize(
    "hint", ["-- { serverError 395 }", "/* { serverError 395 } */", "-- { echoOn }", "-- { clientError 62 }"]
)
def test_a_comment_is_a_comment(acme: Analyst, hint: str) -> None:
    statement = f"SELECT number, throwIf(number = 100000) FROM numbers(200000) {hint}"
    assert acme.refusal(statement)[1] == 395
    assert acme.rows(f"SELECT 1 {hint}") == [["1"]]


def test_an_answer_is_bounded_by_its_bytes(acme: Analyst) -> None:
    assert acme.refusal("SELECT toLowCardinality(repeat('x', 1000)) FROM numbers(100000)")[1] == 396
    assert acme.rows("SELECT 1") == [["1"]]


def test_settings_of_the_address_change_no_tenant(acme: Analyst) -> None:
    for name in ("log_comment", "additional_table_filters", "readonly", "user", "role", "quota_key", "session_id"):
        rows = acme.rows("SELECT DISTINCT tenant_id FROM usage", **{name: "globex"})
        assert rows == [["acme"]], name


@pytest.mark.parametrize("name", ["database", "default_format", "query_id", "param_x", "max_threads", "limit"])
@pytest.mark.parametrize(
    "value", ["a&log_comment=globex", "a?log_comment=globex", "a'; SELECT 1 --", "a\nb", "`", "é" * 99]
)
def test_nothing_of_an_address_reaches_the_engine_unread(acme: Analyst, name: str, value: str) -> None:
    answer = acme.ask("SELECT DISTINCT tenant_id FROM usage", **{name: value})
    assert answer.status_code != 200 or answer.text == "acme\n"
    assert answer.status_code < 500 or "Exception" in answer.text


def test_metadata_tells_of_no_hidden_table_and_of_nobodys_rows(acme: Analyst) -> None:
    names = {row[0] for row in acme.rows("SELECT name FROM system.tables WHERE database = 'sluice'")}
    assert names == set(OF_TENANTS.tables)
    assert (
        acme.rows(
            "SELECT name, total_rows, total_bytes FROM system.tables WHERE total_rows > 0 AND database != 'system'"
        )
        == []
    )
    assert acme.rows("SELECT name FROM system.tables WHERE database = 'tables'") == []
    assert acme.rows("SELECT name FROM system.columns WHERE database IN ('tables', 'hours')") == []
    assert acme.rows("SELECT name FROM system.tables WHERE database = 'hours'") == []
    assert ["hours"] not in acme.rows("SHOW DATABASES")
    assert acme.rows("SELECT table_name FROM information_schema.tables WHERE table_schema = 'tables'") == []
    assert ["tables"] not in acme.rows("SHOW DATABASES")
    assert {row[0] for row in acme.rows("SHOW TABLES")} == set(OF_TENANTS.tables)
    assert acme.rows("SHOW TABLES FROM tables") == []


def test_nothing_tells_how_many_rows_others_have(acme: Analyst) -> None:
    """Theirs lie beside one's own, so the engine looks at them."""
    for form in ("JSON", "JSONCompact", "XML", "JSONColumnsWithMetadata"):
        answer = acme.ask(f"SELECT count() FROM usage FORMAT {form}")
        assert answer.status_code == 200
        assert "rows_read" not in answer.text, form
        assert "rows_read" not in answer.headers["x-clickhouse-summary"]
        assert f'"{sum(ROWS.values())}"' not in answer.headers["x-clickhouse-summary"]
    assert acme.refusal("SELECT 1 FORMAT JSONEachRowWithProgress")[1] == 73
    assert acme.refusal("SELECT 1 SETTINGS max_rows_to_read = 1")[1] == 452
    assert acme.refusal("SELECT 1 SETTINGS output_format_write_statistics = 1")[1] == 452


def test_deep_and_long_statements_end(acme: Analyst) -> None:
    for statement in (
        "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
        "SELECT " + "-" * 20_001 + "1",
        "SELECT " + "[" * 1_000 + "]" * 1_000,
        "SELECT " + " + ".join(["1"] * 60_000),
        "SELECT * FROM " + "(SELECT * FROM " * 500 + "usage" + ")" * 500,
        "SELECT '" + "x" * 300_000 + "'",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
        "SELECT count() FROM usage AS a, usage AS b, usage AS c, usage AS d, usage AS e, usage AS f, numbers(1000000)",
        "SELECT max(match(repeat('a', 100000), '(a*)*b')) FROM numbers(100000)",
        "SELECT length(groupArray(repeat('x', 100000))) FROM numbers(10000000)",
    ):
        answer = acme.ask(statement)
        assert answer.status_code != 200 or answer.text.strip().isdigit(), statement[:80]
    assert acme.rows("SELECT count() FROM usage") == [[str(ROWS["acme"])]]


@pytest.fixture(scope="module")
def ungated(world: World) -> Iterator[ReadingProcess]:
    """A reader whose gate lets everything pass."""
    folder = world.settings.data_dir
    snapshots = Snapshots(world.database.connection(), folder / "clickhouse", folder / "ungated-snapshots")
    reader = ReadingProcess(
        snapshots,
        lambda: 0,
        Limits(5, 2**29, 2**24), max_age_s=3_600, server_memory_bytes=2**29, gated=False,
    )  # fmt: skip
    with closing(snapshots), closing(reader):
        yield reader


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT DISTINCT tenant_id FROM tables.usage_events",
        "SELECT DISTINCT tenant_id FROM merge('tables', 'usage_events')",
        "SELECT DISTINCT tenant_id FROM usage SETTINGS additional_table_filters = {'x': '1'}",
        "SELECT DISTINCT tenant_id FROM usage SETTINGS log_comment = 'globex'",
        "SELECT * FROM tables.compute_records",
        "SELECT * FROM tables.gpu_prices",
        "SELECT DISTINCT tenant_id FROM tables.prices WHERE tenant_id != ''",
        "SELECT * FROM system.parts",
        "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "SET log_comment = 'globex'",
        "INSERT INTO tables.usage_events (tenant_id) VALUES ('acme')",
        "DROP TABLE sluice.usage",
        "CREATE TABLE sluice.x (a Int8) ENGINE = Memory",
    ],
)
def test_behind_the_gate_the_engine_itself_shows_nobody_else(ungated: ReadingProcess, statement: str) -> None:
    with suppress(ClickHouseFailed):
        assert ungated.ask(Ask("acme", statement)).body in (b"acme\n", b"")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO hours.summed SELECT * REPLACE (NOT is_open AS is_open) FROM hours.summed",
        "TRUNCATE TABLE hours.summed",
        "DROP TABLE hours.summed",
        "CREATE TABLE hours.others (a Int8) ENGINE = Memory",
    ],
)
def test_behind_the_gate_nobody_decides_which_hours_are_summed(ungated: ReadingProcess, statement: str) -> None:
    """It is made by a fresh reader, and asked over by all."""
    hours = "SELECT * FROM hours.summed ORDER BY ALL"
    before = ungated.ask(Ask("acme", hours)).body
    assert before
    with pytest.raises(ClickHouseFailed):
        ungated.ask(Ask("acme", statement))
    assert ungated.ask(Ask("acme", hours)).body == before


@pytest.mark.skipif(version_of_kernel() < 1, reason="this kernel has no Landlock")
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT file('/etc/passwd')",
        "SELECT file('{data_dir}/tenants.toml')",
        "SELECT file('/proc/{parent}/environ')",
        "SELECT 1 INTO OUTFILE '/tmp/sluice-attack'",
        "SELECT 1 INTO OUTFILE '{data_dir}/tenants.toml' TRUNCATE",
    ],
)
def test_behind_the_engine_the_kernel_opens_no_file(ungated: ReadingProcess, world: World, statement: str) -> None:
    asked = statement.format(data_dir=world.settings.data_dir, parent=os.getpid())
    before = world.tenants.read_bytes()
    with pytest.raises(ClickHouseFailed):
        ungated.ask(Ask("acme", asked))
    assert world.tenants.read_bytes() == before
    assert not Path("/tmp/sluice-attack").exists()
    assert ungated.ask(Ask("acme", "SELECT DISTINCT tenant_id FROM usage")).body == b"acme\n"
