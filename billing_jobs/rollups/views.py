"""Usage by hour, day and month, defined once for whoever asks."""

from importlib.resources import files

DIMENSIONS = (
    "tenant_id", "project_id", "key_id", "model", "endpoint", "lane", "pool", "region", "ending", "currency",
)  # fmt: skip
"""What usage may be grouped by, beside time."""
FIGURES = {
    "requests": "countIf(choice = 0)",
    "uncached_input_tokens": "sum(uncached_input_tokens)",
    "cached_input_tokens": "sum(cached_input_tokens)",
    "output_tokens": "sum(output_tokens)",
    "reasoning_tokens": "sum(reasoning_tokens)",
    "released_tokens": "sum(released_tokens)",
    "suspense_events": "countIf(charge_state = 'suspense')",
    "cost_pico": "sum(cost_pico)",
}
"""Name → how it comes of the events of a group. Each may be summed over groups."""


HOURS = """
    SELECT hour, max(generation) AS generation, max(written > rolled) AS is_open, max(kept) AS kept
    FROM (
        SELECT
            hour, writer,
            maxIf(step, kind = 'written') AS written,
            maxIf(step, kind = 'rolled') AS rolled,
            maxIf(version, kind = 'rolled') AS generation,
            maxIf(version, kind = 'kept') AS kept
        FROM {tables}usage_hours
        WHERE tenant_id = ''
        GROUP BY hour, writer
    )
    GROUP BY hour
"""
"""Of each hour whether it is read from its events (`is_open`), and the versions of its sums."""
HOURS_LOOKED_UP = f"({HOURS})"
"""By whoever asks, each time."""


def usage_views(
    tables: str = "", views: str = "", create: str = "CREATE OR REPLACE VIEW", hours: str = HOURS_LOOKED_UP
) -> str:
    """The statements that make them. `tables` and `views` are prefixes: a database with its dot, or empty. Where a
    database is in memory nothing can be replaced, and `create` is another word. `hours`: where nothing is written to
    the tables any more, a table that holds what `HOURS` gave.
    """
    return (files("billing_jobs.rollups") / "views.sql").read_text().format(
        create=create,
        tables=tables,
        views=views,
        hours=hours.format(tables=tables),
        dimensions=", ".join(DIMENSIONS),
        figures=", ".join(FIGURES),
        figures_of_events=", ".join(f"{of_events} AS {name}" for name, of_events in FIGURES.items()),
        sums=", ".join(f"sum({name}) AS {name}" for name in FIGURES),
    )  # fmt: skip
