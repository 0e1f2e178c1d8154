"""Questions about usage, the operator's own, and those of the analysts' guide, put to a server."""

from billing_jobs.store import Database
from tests.unit.billing_jobs.test_analysts_guide import (  # noqa: F401
    QUERIES,
    ask,
    filled,
    test_the_guide_shows_what_the_tables_hold,
)
from tests.unit.billing_jobs.test_sql_guard import (  # noqa: F401
    hasty,
    reader,
    test_time_memory_and_rows_are_limited,
    test_writes_are_refused_by_the_engine_even_past_the_guard,
)
from tests.unit.billing_jobs.test_usage import *  # noqa: F403


def test_every_query_of_the_guide_runs_in_a_server(filled: Database) -> None:  # noqa: F811
    assert len(QUERIES) > 20
    for query in QUERIES:
        assert ask(filled, query).columns, query
