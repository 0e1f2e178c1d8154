"""Whom usage no longer names: an end user, or all of a tenant's. Rows and sums stay, without pseudonym and trace.

Who is forgotten stands in `forgotten`, as a hash, with the moment before which requests no longer name it: whoever
comes again afterwards is somebody new. So what is cut of a row follows from the row and that table alone, and whoever
makes the row anew of the log cuts it alike.

A row may be on its way while somebody is forgotten. So who inserts looks before and afterwards (`Forgetting`), and what
was recorded in between is cut of the table once more. Either the insert saw it, or its rows were there when the table
was rewritten, or the second look sees it.

Whoever begins looks at what is stored as well, since somebody may have died between two of these steps, or put back
rows that were stored elsewhere. A month of which nothing was inserted since a look found nobody named, and nobody was
recorded since, needs no other (`forgotten_looks`).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from billing_jobs.rows import TableRows

AT_ONCE = 50
"""Of one statement that rewrites the table."""
KEPT_DAYS = 420
"""So long `usage` may tell of a request again, and older ones are cut in the tables already."""
_CUT = ("end_user", "traceparent")
_SUBJECT = "lower(hex(SHA256(concat(tenant_id, '\\0', {end_user}))))"
_READ = f"""
    SELECT tenant_id, subject, toUnixTimestamp64Milli(max(before)) FROM forgotten
    WHERE before > now64(3) - INTERVAL {KEPT_DAYS} DAY
    GROUP BY tenant_id, subject
"""  # noqa: S608 - a number of ours
_NAMED = f"""
    SELECT tenant_id, {_SUBJECT.format(end_user="end_user")} AS subject, toUnixTimestamp64Milli(first_at)
    FROM (
        SELECT tenant_id, end_user, min(accepted_at) AS first_at
        FROM usage_events
        WHERE tenant_id IN (SELECT tenant_id FROM forgotten) AND end_user != '' AND {{months}}
        GROUP BY tenant_id, end_user
    )
    WHERE (tenant_id, subject) IN (SELECT tenant_id, toString(subject) FROM forgotten)
    UNION ALL
    SELECT tenant_id, {_SUBJECT.format(end_user="''")} AS subject, toUnixTimestamp64Milli(min(accepted_at))
    FROM usage_events
    WHERE (end_user != '' OR traceparent != '') AND {{months}}
      AND tenant_id IN (SELECT tenant_id FROM forgotten WHERE subject = {_SUBJECT.format(end_user="''")})
    GROUP BY tenant_id
"""  # noqa: S608 - names are ours
_OF_MONTHS = "_partition_id IN {partitions:Array(String)}"
_WRITTEN = """
    SELECT partition_id, min(min_block_number), max(max_block_number)
    FROM system.parts WHERE database = currentDatabase() AND table = 'usage_events' AND active
    GROUP BY partition_id
"""
_TABLE_ID = (
    "SELECT toString(uuid) FROM system.tables WHERE database = currentDatabase() AND name = 'usage_events'"
)  # fmt: skip
_LOOKED_AT = """
    SELECT partition_id, first_block, last_block FROM forgotten_looks FINAL
    WHERE table_id = {table:String} AND forgotten = {forgotten:UInt64}
"""
_UNDER_WAY = (
    "SELECT count(), any(latest_fail_reason) FROM system.mutations"
    " WHERE database = currentDatabase() AND table = 'usage_events' AND NOT is_done"
)


def subject_of(tenant_id: str, pseudonym: str = "") -> str:
    """The same that the engine makes. Without a pseudonym: all of the tenant's end users."""
    return hashlib.sha256(f"{tenant_id}\0{pseudonym}".encode()).hexdigest()


class Forgot(NamedTuple):
    """Requests that were accepted before that no longer name it."""

    tenant_id: str
    subject: str
    before_ms: int

    @property
    def is_whole_tenant(self) -> bool:
        return self.subject == subject_of(self.tenant_id)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """All that is recorded. Pure."""

    before_ms: dict[str, dict[str, int]]
    """By tenant and subject."""

    @classmethod
    def of(cls, entries: Iterable[Forgot]) -> "Forgotten":
        found: dict[str, dict[str, int]] = {}
        for tenant_id, subject, before_ms in entries:
            of_tenant = found.setdefault(tenant_id, {})
            of_tenant[subject] = max(before_ms, of_tenant.get(subject, 0))
        return cls(found)

    def is_cut(self, tenant_id: str, end_user: str, accepted_at_ms: int) -> bool:
        of_tenant = self.before_ms.get(tenant_id)
        if of_tenant is None:
            return False
        whole_ms, own_ms = (of_tenant.get(subject_of(tenant_id, each), 0) for each in ("", end_user))
        return accepted_at_ms < max(whole_ms, own_ms)

    def cut(self, rows: TableRows) -> TableRows:
        """Of rows for `usage_events`; of other tables they are as they were."""
        if rows.table != "usage_events" or not self.before_ms:
            return rows
        named = zip(*map(rows.column, ("tenant_id", "end_user", "accepted_at")), strict=True)
        if not any(cuts := [self.is_cut(*each) for each in named]):
            return rows
        columns = [
            ["" if cut else value for cut, value in zip(cuts, column, strict=True)] if name in _CUT else column
            for name, column in zip(rows.names, rows.columns, strict=True)
        ]
        return replace(rows, columns=columns)

    def still_named(self, found: Iterable[Sequence[Any]]) -> list[Forgot]:
        """Of subjects with when their first request was accepted of which rows still tell."""
        return [
            Forgot(tenant_id, subject, before_ms)
            for tenant_id, subject, first_ms in found
            if int(first_ms) < (before_ms := self.before_ms.get(tenant_id, {}).get(subject, 0))
        ]


class Forgetting:
    """What is recorded, as last looked at. Calls block and raise as the client does."""

    def __init__(self) -> None:
        self._rows = 0
        self._known = Forgotten({})

    def look(self, client: Any) -> bool:
        """Whether something was recorded since the last look."""
        rows = int(client.query("SELECT count() FROM forgotten").first_row[0])
        is_new = rows != self._rows
        if is_new:
            self._known = Forgotten.of(Forgot(*row) for row in _texts(client.query(_READ).result_rows))
            self._rows = rows
        return is_new

    def cut(self, rows: TableRows) -> TableRows:
        return self._known.cut(rows)

    def cut_stored(self, client: Any) -> int:
        """Begins to rewrite the rows that name somebody who was forgotten, and says of how many subjects there were
        such: the engine goes on by itself, also after a crash.
        """
        self.look(client)
        return self._cut_named(client, _NAMED.format(months="true")) if self._known.before_ms else 0

    def cut_stored_since(self, client: Any) -> int:
        """As `cut_stored`, of months that were written to since a look at them found nobody named."""
        self.look(client)
        if not self._known.before_ms:
            return 0
        # Before anything is looked at: what is inserted meanwhile is looked at the next time.
        written = {month: (first, last) for month, first, last in client.query(_WRITTEN).result_rows}
        place = {"table": client.query(_TABLE_ID).first_row[0], "forgotten": self._rows}
        looks = client.query(_LOOKED_AT, parameters=place).result_rows
        looked_at = {month: (first, last) for month, first, last in looks}
        since = [month for month, blocks in written.items() if looked_at.get(month) != blocks]
        if not since:
            return 0
        named = self._cut_named(client, _NAMED.format(months=_OF_MONTHS), partitions=since)
        if not named:
            _note_looks(client, [[place["table"], month, *written[month], self._rows] for month in since])
        return named

    def _cut_named(self, client: Any, query: str, **parameters: Any) -> int:
        named = self._known.still_named(_texts(client.query(query, parameters=parameters).result_rows))
        for begin in range(0, len(named), AT_ONCE):
            client.command(*_rewriting(named[begin : begin + AT_ONCE]))
        return len(named)


def record(client: Any, entries: Sequence[Forgot], actor: str) -> None:
    client.insert(
        "forgotten",
        [[each.tenant_id, each.subject, each.before_ms, actor] for each in entries],
        column_names=["tenant_id", "subject", "before", "actor"],
        column_type_names=["LowCardinality(String)", "FixedString(64)", "DateTime64(3, 'UTC')", "String"],
        settings={"async_insert": 0},
    )


def _note_looks(client: Any, rows: Sequence[Sequence[Any]]) -> None:
    client.insert(
        "forgotten_looks",
        rows,
        column_names=["table_id", "partition_id", "first_block", "last_block", "forgotten"],
        column_type_names=["String", "String", "Int64", "Int64", "UInt64"],
        settings={"async_insert": 0},
    )


def under_way(client: Any) -> tuple[int, str]:
    """How many rewritings of the table are, and why one of them failed, if one did."""
    count, why = client.query(_UNDER_WAY).first_row
    return int(count), str(why)


def _rewriting(some: Sequence[Forgot]) -> tuple[str, dict[str, Any]]:
    conditions: list[str] = []
    parameters: dict[str, Any] = {}
    for number, each in enumerate(some):
        parameters |= {f"tenant{number}": each.tenant_id, f"before{number}": each.before_ms}
        condition = (
            f"tenant_id = {{tenant{number}:String}}"
            f" AND accepted_at < fromUnixTimestamp64Milli({{before{number}:Int64}}, 'UTC')"
        )
        if not each.is_whole_tenant:
            parameters[f"subject{number}"] = each.subject
            condition += f" AND {_SUBJECT.format(end_user='end_user')} = {{subject{number}:String}}"
        conditions.append(f"({condition})")
    cut = ", ".join(f"{name} = ''" for name in _CUT)
    named = " OR ".join(f"{name} != ''" for name in _CUT)
    return f"ALTER TABLE usage_events UPDATE {cut} WHERE ({named}) AND ({' OR '.join(conditions)})", parameters


def _texts(rows: Iterable[Sequence[Any]]) -> list[tuple[str, str, int]]:
    """A FixedString comes as bytes."""
    return [
        (tenant_id, subject.decode() if isinstance(subject, bytes) else subject, int(at_ms))
        for tenant_id, subject, at_ms in rows
    ]
