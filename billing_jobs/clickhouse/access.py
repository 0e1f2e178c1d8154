"""What the engine itself lets a reader see and spend: grants, row policies and constraints, in its own configuration.
`grants.py` says the same in statements, for a server.

Every connection of an embedded engine is the same user, so the tenant travels in a setting, `log_comment`, that nobody
can change once the connection is open. A table of tenants without a row policy would show all of them, so a reader's
snapshot holds those tables alone that have one here.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Self
from xml.sax.saxutils import escape

from billing_jobs.clickhouse.gate import READ_STATES, Rules
from billing_jobs.clickhouse.list_functions import FILE as FUNCTIONS_FILE
from billing_jobs.embedded import EMBEDDED_DATABASE
from billing_jobs.invoices.views import CLOSING_OF_TENANTS, ENTRY_OF_TENANTS, invoice_views_of_tenants
from billing_jobs.rollups.views import DIMENSIONS, FIGURES, HOURS_LOOKED_UP, usage_views

TENANT_SETTING = "log_comment"
SERVER_NAME = "Sluice"
"""What clients are told that it is called, in place of the machine's name."""
OPERATOR = "*"
"""In the place of a tenant: all of them. No tenant is called so."""
TABLES_DATABASE = "tables"
"""Where the tables are whose views analysts of a tenant see."""
HOURS_DATABASE = "hours"
HOURS_TABLE = f"{HOURS_DATABASE}.summed"
"""What a reader has looked up once of its snapshot, in memory: which hours may be read from their sums, of nobody's."""
_VIEWS_OVER_HOURS = ("usage_by_hour", "usage_by_day", "usage_by_month", "usage_live")
"""Those of `rollups/views.sql`. Every reader makes them anew, over that table."""

_OF_TENANTS = {
    # First: what its rows name must be in the copies of the tables below.
    "invoice_closings": "tenant_id = {tenant}",
    "invoice_usage": "tenant_id = {tenant}",
    "ledger_entries": "tenant_id = {tenant}",
    "usage_events": "tenant_id = {tenant}",
    # Those of no tenant say which hours of all are summed, and stand in no view.
    "usage_hours": "tenant_id IN ('', {tenant})",
    "delivered_counts": "tenant_id = {tenant}",
    "prices": "tenant_id IN ('', {tenant})",
}
COLUMNS_OF_TENANTS = {
    "invoice_closings": CLOSING_OF_TENANTS,
    "invoice_usage": (
        "closing_id", "tenant_id", "month", "usage_id", "kind", "model", "currency", "price_id", "events",
        "uncached_input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "cost_pico",
    ),
    "ledger_entries": ENTRY_OF_TENANTS,
    "usage_events": (
        "usage_id", "response_id", "choice", "tenant_id", "project_id", "key_id", "end_user", "region",
        "policy_version", "traceparent", "schema_version", "stage_ms", "endpoint", "model", "requested_model", "pool",
        "lane", "attempts", "ending", "finish_reason", "billable", "billing_rule_version", "accepted_at",
        "first_token_at", "ended_at", "uncached_input_tokens", "cached_input_tokens", "output_tokens",
        "reasoning_tokens", "released_tokens", "reserved_tokens", "charge_state", "cost_pico", "currency", "price_id",
        "logged_at",
    ),
    "usage_hours": (*DIMENSIONS, *FIGURES, "hour", "kind", "writer", "version", "step"),
    "delivered_counts": (
        "delivered_id", "response_id", "tenant_id", "project_id", "region", "delivered_tokens", "logged_at",
    ),
    "prices": (
        "price_id", "model", "currency", "valid_from", "uncached_input_pico", "cached_input_pico", "output_pico",
        "reasoning_pico", "tenant_id", "endpoint", "lane", "region", "withdrawn", "recorded_at", "version",
    ),
}  # fmt: skip
"""Table → what the views of tenants are made of."""
_VIEWS_OF_TENANTS = (
    "usage", "usage_by_hour", "usage_by_day", "usage_by_month", "usage_live", "delivered_counts", "prices",
    "price_intervals", "invoices", "invoice_lines", "invoiced_usage", "ledger",
)  # fmt: skip
_TABLES_OF_THE_OPERATOR = (
    "usage_events", "compute_records", "delivered_counts", "prices", "billing_batches", "billing_decisions",
    "reconciliations", "schema_version", "usage", "usage_hours", "usage_by_hour", "usage_by_day", "usage_by_month",
    "usage_live", "price_intervals", "price_timeline", "price_differences", "gpu_prices", "gpu_costs", "margins",
    "price_changes", "worker_presence",
    "invoice_closings", "invoice_usage", "ledger_entries",
    "counting_closings", "invoices", "invoice_lines", "invoiced_usage", "ledger", "dropped_months", "forgotten",
    "forgotten_looks",
)  # fmt: skip
SYSTEM_TABLES = (
    "aggregate_function_combinators", "columns", "contributors", "data_type_families", "databases", "formats",
    "functions", "keywords", "numbers", "numbers_mt", "one", "settings", "table_engines", "table_functions", "tables",
    "time_zones", "zeros",
)  # fmt: skip
"""What clients ask when they connect and complete names."""
SCHEMA_DATABASES = ("information_schema", "INFORMATION_SCHEMA")
_SCHEMA_TABLES = (
    "columns", "key_column_usage", "referential_constraints", "schemata", "statistics", "tables", "views",
)  # fmt: skip

_SHOWN_TO_NOBODY = (
    "asynchronous_metrics", "clusters", "detached_parts", "detached_tables", "disks", "errors", "events", "grants",
    "macros", "merge_tree_settings", "merges", "metrics", "mutations", "parts", "parts_columns", "processes",
    "projection_parts", "projection_parts_columns", "projections", "query_cache", "row_policies", "server_settings",
    "settings_profiles", "storage_policies", "user_processes", "users", "view_refreshes",
)  # fmt: skip
"""Tables of `system` that tell of the engine and of everybody's rows; it shows most of them whatever is granted."""
SETTINGS = frozenset(
    """
    aggregate_functions_null_for_empty allow_experimental_analyzer any_join_distinct_right_table_keys
    cast_keep_nullable count_distinct_implementation date_time_input_format date_time_output_format
    enable_named_columns_in_function_tuple enable_optimize_predicate_expression extremes final group_by_use_nulls
    join_algorithm join_default_strictness join_use_nulls limit max_block_size max_execution_time
    max_result_rows max_rows_to_group_by max_threads offset optimize_move_to_prewhere
    optimize_read_in_order output_format_arrow_string_as_string output_format_csv_crlf_end_of_line
    output_format_csv_delimiter output_format_decimal_trailing_zeros output_format_json_array_of_rows
    output_format_json_escape_forward_slashes output_format_json_named_tuples_as_objects
    output_format_json_quote_64bit_floats output_format_json_quote_64bit_integers output_format_json_quote_decimals
    output_format_json_quote_denormals output_format_json_validate_utf8
    output_format_native_encode_types_in_binary_format
    output_format_native_use_flattened_dynamic_and_json_serialization output_format_native_write_json_as_string
    output_format_parquet_string_as_string output_format_pretty_max_rows output_format_tsv_crlf_end_of_line
    prefer_column_name_to_alias result_overflow_mode session_timezone
    timeout_overflow_mode totals_mode transform_null_in use_client_time_zone
    """.split()  # noqa: SIM905 - a page of names
)
"""What a statement, or the address that it comes with, may set. The constraints below bound what costs."""
_FORMATS = frozenset(
    """
    Arrow ArrowStream Avro BSONEachRow CSV CSVWithNames CSVWithNamesAndTypes JSON JSONColumns JSONColumnsWithMetadata
    JSONCompact JSONCompactColumns JSONCompactEachRow JSONCompactEachRowWithNames JSONCompactEachRowWithNamesAndTypes
    JSONCompactStrings JSONCompactStringsEachRow JSONCompactStringsEachRowWithNames
    JSONCompactStringsEachRowWithNamesAndTypes JSONEachRow JSONL JSONLines JSONObjectEachRow JSONStrings
    JSONStringsEachRow LineAsString Markdown MsgPack NDJSON Native Null ORC Parquet Pretty PrettyCompact
    PrettyCompactMonoBlock PrettyCompactNoEscapes PrettyJSONEachRow PrettyMonoBlock PrettyNDJSON PrettyNoEscapes
    PrettySpace RawBLOB RowBinary RowBinaryWithNames RowBinaryWithNamesAndTypes SQLInsert TSKV TSV TSVRaw
    TSVRawWithNames TSVRawWithNamesAndTypes TSVWithNames TSVWithNamesAndTypes TabSeparated TabSeparatedRaw
    TabSeparatedRawWithNames TabSeparatedRawWithNamesAndTypes TabSeparatedWithNames TabSeparatedWithNamesAndTypes Values
    Vertical XML
    """.split()  # noqa: SIM905 - a page of names
)
"""None that reads a schema or a template, is another protocol, or tells how much the engine has looked at."""
_SPEED = (
    # A row never moves to another partition, so rows of two of them are never one.
    "<do_not_merge_across_partitions_select_final>1</do_not_merge_across_partitions_select_final>"
    # What is compiled is lost with the snapshot, and takes five times as long as a month of a tenant's.
    "<compile_expressions>0</compile_expressions>"
    "<compile_aggregate_expressions>0</compile_aggregate_expressions>"
    "<compile_sort_description>0</compile_sort_description>"
)
_TABLE_FUNCTIONS = frozenset(
    {"generate_series", "generateseries", "null", "numbers", "numbers_mt", "values", "view", "zeros", "zeros_mt"}
)
"""They read nothing."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tables a snapshot has, none: all of the database with its views, but those `left_out`; and in which
    database they are.
    """

    database: str
    tables: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one statement."""

    time_s: float
    memory_bytes: int
    result_bytes: int = 67_108_864
    threads: int = 2

    @classmethod
    def within(cls, time_s: float, reader_memory_mib: int) -> Self:
        """`reader_memory_mib` are for a whole process."""
        return cls(time_s, reader_memory_mib * 1_048_576 * 3 // 4)


def rows_of(tenant: str) -> dict[str, str]:
    """Table → which of its rows a tenant sees; `tenant` is an expression that gives its id."""
    return {table: rows.format(tenant=tenant) for table, rows in _OF_TENANTS.items()}


def views_of_tenants(tables: str, views: str, create: str, hours: str = HOURS_LOOKED_UP) -> str:
    """The statements that make them. `tables` and `views` are prefixes: a database with its dot. Where a database is in
    memory nothing can be replaced, and `create` is `CREATE VIEW`. `hours` as in `usage_views`.
    """
    own = (files("billing_jobs.clickhouse") / "readers.sql").read_text().format(
        create=create, tables=tables, views=views,
        **{table: ", ".join(columns) for table, columns in COLUMNS_OF_TENANTS.items()},
    )  # fmt: skip
    return "\n".join((own, usage_views(tables, views, create, hours), invoice_views_of_tenants(tables, views, create)))


def bounds(limits: Limits) -> dict[str, float]:
    """Setting → the most that a statement may have of it, and has."""
    return {
        "max_execution_time": limits.time_s, "max_memory_usage": limits.memory_bytes,
        "max_result_bytes": limits.result_bytes, "max_threads": limits.threads, "max_block_size": 65_409,
    }  # fmt: skip


FIXED_SETTINGS = {
    # How much the engine had to look at would tell of the rows of others.
    "output_format_write_statistics": "0",
    "result_overflow_mode": "throw",
    "timeout_overflow_mode": "throw",
}
"""Setting → what it is at first."""
CONSTANT_SETTINGS = (
    "readonly", "additional_table_filters", "additional_result_filter", "dialect", "format_schema",
    "format_template_row", "format_template_resultset", "use_query_cache", "allow_ddl",
    "allow_introspection_functions", "output_format_write_statistics",
)  # fmt: skip
"""What no statement changes."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What one kind of reader sees, a tenant's analysts or the operator."""

    layout: Layout
    tables: tuple[str, ...]
    policies: dict[str, str]
    hidden_databases: tuple[str, ...]
    views: str
    """The name of the statements that a fresh reader runs."""


OF_TENANTS = Reach(
    Layout(TABLES_DATABASE, tuple(_OF_TENANTS)), _VIEWS_OF_TENANTS, rows_of(f"getSetting('{TENANT_SETTING}')"),
    (TABLES_DATABASE, HOURS_DATABASE, "default"), "of tenants",
)  # fmt: skip
OF_THE_OPERATOR = Reach(
    Layout(EMBEDDED_DATABASE, left_out=_VIEWS_OVER_HOURS), _TABLES_OF_THE_OPERATOR, {}, (HOURS_DATABASE, "default"),
    "of the operator",
)  # fmt: skip


def reach_of(tenant: str) -> Reach:
    return OF_THE_OPERATOR if tenant == OPERATOR else OF_TENANTS


@cache
def _functions() -> frozenset[str]:
    return frozenset((files("billing_jobs.clickhouse") / FUNCTIONS_FILE).read_text().split())


def rules(
    reach: Reach, engine_functions: frozenset[str], combinators: tuple[str, ...], formats: frozenset[str]
) -> Rules:
    """Beside `reach`, what the engine says that it has."""
    return Rules(
        database=EMBEDDED_DATABASE,
        tables=frozenset(
            [*((EMBEDDED_DATABASE, table) for table in reach.tables), *(("system", table) for table in SYSTEM_TABLES)]
            + [(name, cased(table)) for name, cased in (("information_schema", str.lower), ("INFORMATION_SCHEMA",
               str.upper)) for table in _SCHEMA_TABLES]
        ),
        functions=_functions(),
        combinators=tuple(each for each in combinators if each not in READ_STATES),
        known_functions=engine_functions,
        table_functions=_TABLE_FUNCTIONS,
        settings=SETTINGS,
        formats=_FORMATS & formats,
    )  # fmt: skip


def users(reach: Reach, limits: Limits) -> str:
    """The engine's configuration of its one user."""
    grants = [
        f"GRANT SELECT, SHOW ON {EMBEDDED_DATABASE}.*",
        *(f"GRANT SELECT ON {TABLES_DATABASE}.{table}" for table in reach.policies),
        *(f"GRANT SELECT ON system.{table}" for table in SYSTEM_TABLES),
        *(f"GRANT SELECT ON {schema}.*" for schema in SCHEMA_DATABASES),
        # For the views that a fresh reader makes, and what they stand on. Who asks is read-only.
        "GRANT CREATE DATABASE, CREATE VIEW ON *.*",
        f"GRANT SELECT, CREATE TABLE, INSERT ON {HOURS_TABLE}",
    ]
    hidden = ", ".join(f"'{name}'" for name in reach.hidden_databases)
    of_system = {
        "tables": f"database NOT IN ({hidden})",
        "columns": f"database NOT IN ({hidden})",
        "databases": f"name NOT IN ({hidden})",
        **dict.fromkeys(_SHOWN_TO_NOBODY if reach.policies else (), "0"),
    }
    policies = _policies(TABLES_DATABASE, reach.policies) + _policies("system", of_system)
    bounded = bounds(limits)
    constraints = "".join(f"<{name}><const/></{name}>" for name in (TENANT_SETTING, *CONSTANT_SETTINGS)) + "".join(
        f"<{name}><min>1</min><max>{most}</max></{name}>" for name, most in bounded.items()
    )
    values = "".join(f"<{name}>{value}</{name}>" for name, value in {**bounded, **FIXED_SETTINGS}.items())
    return (
        f"<clickhouse><profiles><default>{values}{_SPEED}"
        f"<constraints>{constraints}</constraints></default></profiles><quotas><default/></quotas>"
        "<users><default><password></password><networks><ip>::/0</ip></networks>"
        "<profile>default</profile><quota>default</quota>"
        f"<grants>{''.join(f'<query>{grant}</query>' for grant in grants)}</grants>"
        f"<databases>{policies}</databases></default></users></clickhouse>\n"
    )


def _policies(database: str, kept: dict[str, str]) -> str:
    of_tables = "".join(f"<{table}><filter>{escape(rows)}</filter></{table}>" for table, rows in kept.items())
    return f"<{database}>{of_tables}</{database}>" if kept else ""
