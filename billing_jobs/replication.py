"""The tables with replicated engines, in a server's database of the engine `Replicated`, which gives each its place in
Keeper and every replica its statements.
"""

import re
from typing import Any, Final

SETTINGS: Final = {
    # What was acknowledged is read by whoever asks next, whichever replica that is: billing decides by what it reads.
    "insert_quorum": "auto",
    "insert_quorum_parallel": 0,
    "select_sequential_consistency": 1,
}
"""Of each connection to such tables."""
_ENGINE = re.compile(r"\bENGINE = (\w*MergeTree)\b")
_WINDOW = "non_replicated_deduplication_window"
_REMEMBERED_S = 604_800
"""Replicated tables forget tokens by their age as well, of late within an hour. A cut may be inserted again later."""


class EnginesDiffer(Exception):
    """The tables were made otherwise than they are to be."""


def replicated(statement: str) -> str:
    """Of the migrations, as it is where tables are replicated."""
    if _ENGINE.search(statement) is None:
        return statement
    made = _ENGINE.sub(r"ENGINE = Replicated\1", statement)
    if _WINDOW in made:
        # Tokens, where a table has them, and nothing where it has none: that is the default of the others alone.
        return re.sub(
            rf"{_WINDOW} = (\d+)",
            rf"replicated_deduplication_window = \1, replicated_deduplication_window_seconds = {_REMEMBERED_S}",
            made,
        )
    none = "replicated_deduplication_window = 0"
    return made.replace("SETTINGS ", f"SETTINGS {none}, ", 1) if "SETTINGS " in made else f"{made} SETTINGS {none}"


def check_engines(client: Any, *, replicated: bool) -> None:
    """Of tables that are there. Raises EnginesDiffer."""
    tables = client.query(
        "SELECT name, startsWith(engine, 'Replicated') FROM system.tables"
        " WHERE database = currentDatabase() AND engine LIKE '%MergeTree' AND engine NOT LIKE 'Shared%' ORDER BY name"
    )
    otherwise = [name for name, is_replicated in tables.result_rows if bool(is_replicated) != replicated]
    if otherwise:
        raise EnginesDiffer(
            f"{', '.join(otherwise)}: {'not ' if replicated else ''}replicated, and billing.clickhouse_replicated is"
            f" {str(replicated).lower()}"
        )
    if not replicated:
        return
    [[engine]] = client.query("SELECT engine FROM system.databases WHERE name = currentDatabase()").result_rows
    if engine not in ("Replicated", "Shared"):
        raise EnginesDiffer(
            f"billing.clickhouse_replicated needs a database of the engine Replicated, this is {engine}"
        )
