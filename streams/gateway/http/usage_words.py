"""How usage is asked for over HTTP: in our own words and in OpenAI's, to one question. Pure.

A list stands as often as it has names, with or without OpenAI's `[]` behind its own. A cursor says where its page
begins and where the last one ends, so that the pages of one question are of the same time, however long they are read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from schemas.request import ENDPOINTS
from schemas.usage_query import (
    BUCKET_S,
    COST_GROUPS,
    GROUPS,
    MAX_BUCKETS,
    MAX_NAMES,
    MAX_TIME_S,
    BucketWidth,
    GroupBy,
    InvalidQuery,
    UsageQuery,
    end_of_bucket,
)

WEEK_S: Final = 7 * 86_400
MAX_NAME_CHARS: Final = 200
_NUMBER: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_CURSOR: Final = re.compile(r"page_([0-9]{1,12})_([0-9]{1,12})", re.ASCII)
_SWITCH: Final = {"true": True, "false": False}


class UnknownField(InvalidQuery):
    """A field that is not among those of this address."""

    def __init__(self, name: str) -> None:
        super().__init__(name[:100], f"{name[:100]} is not supported")


@dataclass(frozen=True, slots=True)
class Kind:
    """What one address may be asked.

    `groups` and `lists`: how it calls what a `UsageQuery` calls otherwise. `limits`: of each width how many buckets a
    page has, unless that is asked, and at most.
    """

    groups: Mapping[str, GroupBy]
    lists: Mapping[str, str]
    limits: Mapping[BucketWidth, tuple[int, int]]
    switches: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    always: tuple[GroupBy, ...] = ()
    """By what it is grouped in any case."""
    endpoints: tuple[str, ...] = ()
    """Of which it tells; none: of all."""
    needs_start: bool = False

    @property
    def scalars(self) -> frozenset[str]:
        return frozenset(("start_time", "end_time", "bucket_width", "limit", "page", *self.switches, *self.further))


_OWN_LISTS: Final = {
    "models": "models", "project_ids": "project_ids", "key_ids": "key_ids", "user_ids": "end_users",
    "endpoints": "endpoints", "lanes": "lanes",
}  # fmt: skip
_OPENAI_LISTS: Final = {"project_ids": "project_ids", "api_key_ids": "key_ids"}
_OPENAI_USAGE_LISTS: Final = {**_OPENAI_LISTS, "user_ids": "end_users", "models": "models"}
_OPENAI_GROUPS: Final[dict[str, GroupBy]] = {
    "project_id": "project_id", "user_id": "end_user", "api_key_id": "key_id", "model": "model"
}  # fmt: skip
_OPENAI_LIMITS: Final[dict[BucketWidth, tuple[int, int]]] = {"1d": (7, 31), "1h": (24, 168), "1m": (60, 1_440)}
USAGE: Final = Kind(
    groups={name: name for name in GROUPS},
    lists=_OWN_LISTS,
    limits={width: (most, most) for width, most in MAX_BUCKETS.items()},
    switches=("batch",),
    further=("org_id",),
    always=("currency",),
)
COSTS: Final = Kind(
    groups={name: name for name in COST_GROUPS},
    lists=_OWN_LISTS,
    limits=USAGE.limits,
    switches=("batch",),
    further=("org_id",),
    always=("currency",),
)
OPENAI_COMPLETIONS: Final = Kind(
    groups={**_OPENAI_GROUPS, "batch": "batch", "service_tier": "lane"},
    lists=_OPENAI_USAGE_LISTS,
    limits=_OPENAI_LIMITS,
    switches=("batch",),
    endpoints=tuple(endpoint for endpoint in ENDPOINTS if endpoint != "embeddings"),
    needs_start=True,
)
OPENAI_EMBEDDINGS: Final = Kind(
    groups=_OPENAI_GROUPS,
    lists=_OPENAI_USAGE_LISTS,
    limits=_OPENAI_LIMITS,
    endpoints=("embeddings",),
    needs_start=True,
)
OPENAI_COSTS: Final = Kind(
    groups={"project_id": "project_id", "line_item": "line_item", "api_key_id": "key_id"},
    lists=_OPENAI_LISTS,
    limits={"1d": (7, 180)},
    always=("currency",),
    needs_start=True,
)


@dataclass(frozen=True, slots=True)
class Question:
    """`groups`: what its client asked for, in its words, and what that is called in an answer of billing's."""

    query: UsageQuery
    groups: dict[str, GroupBy] = field(hash=False)

    def cursor(self, next_start: int | None) -> str | None:
        return None if next_start is None else f"page_{next_start}_{self.query.end_time}"


def question(kind: Kind, items: Sequence[tuple[str, str]], tenant_id: str, now_s: int) -> Question:
    """`items` are those of the address. Where no end is asked for, it is that of the bucket that runs. Raises
    InvalidQuery, with the field as its client calls it.
    """
    given = _given(kind, items)
    scalars = {name: values[-1] for name, values in given.items() if name in kind.scalars}
    width = _width(kind, scalars.get("bucket_width", "1d"))
    start_s, end_s = _interval(kind, scalars, width, now_s)
    groups = _groups(kind, given.get("group_by", []))
    lists = {ours: _names(theirs, given[theirs]) for theirs, ours in kind.lists.items() if theirs in given}
    if kind.endpoints:
        lists["endpoints"] = kind.endpoints
    query = UsageQuery.asked(
        tenant_id=tenant_id,
        start_time=start_s,
        end_time=end_s,
        bucket_width=width,
        group_by=(*groups.values(), *kind.always),
        limit=_limit(kind, scalars.get("limit"), width),
        batch=_switch("batch", scalars.get("batch")),
        **lists,
    )
    return Question(query, groups)


def _given(kind: Kind, items: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for name, value in items:
        plain = name.removesuffix("[]")
        is_list = plain == "group_by" or plain in kind.lists
        if not is_list and name not in kind.scalars:
            raise UnknownField(name)
        given.setdefault(plain, []).append(value)
    return given


def _width(kind: Kind, text: str) -> BucketWidth:
    for width in kind.limits:
        if text == width:
            return width
    raise InvalidQuery("bucket_width", f"bucket_width must be one of {', '.join(kind.limits)}")


def _number(name: str, text: str) -> int:
    if _NUMBER.fullmatch(text) is None or int(text) > MAX_TIME_S:
        raise InvalidQuery(name, f"{name} must be Unix seconds between 0 and {MAX_TIME_S}")
    return int(text)


def _interval(kind: Kind, scalars: Mapping[str, str], width: BucketWidth, now_s: int) -> tuple[int, int]:
    start_s, end_s = (_number(name, scalars[name]) if name in scalars else None for name in ("start_time", "end_time"))
    if start_s is None and kind.needs_start:
        raise InvalidQuery("start_time", "start_time must be given")
    cursor = _cursor(scalars["page"], width) if "page" in scalars else None
    if end_s is None:
        end_s = end_of_bucket(width, now_s) if cursor is None else cursor[1]
    if start_s is not None and start_s >= end_s:
        raise InvalidQuery("start_time", "start_time must lie before end_time")
    if cursor is None:
        return max(0, end_s - WEEK_S) if start_s is None else start_s, end_s
    if cursor[1] != end_s or not (start_s or 0) <= cursor[0] < end_s:
        raise InvalidQuery("page", "page is no next_page of this question")
    return cursor


def _cursor(text: str, width: BucketWidth) -> tuple[int, int]:
    found = _CURSOR.fullmatch(text)
    start_s, end_s = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 < start_s < end_s <= MAX_TIME_S or start_s % BUCKET_S[width]:
        raise InvalidQuery("page", "page is no next_page of this question")
    return start_s, end_s


def _limit(kind: Kind, text: str | None, width: BucketWidth) -> int:
    default, most = kind.limits[width]
    if text is None:
        return default
    if _NUMBER.fullmatch(text) is None or not 1 <= int(text) <= most:
        raise InvalidQuery("limit", f"limit must be 1 to {most} buckets of {width}")
    return int(text)


def _groups(kind: Kind, values: Sequence[str]) -> dict[str, GroupBy]:
    asked = [name for value in values for part in value.split(",") if (name := part.strip())]
    if unknown := [name for name in asked if name not in kind.groups]:
        raise InvalidQuery("group_by", f"group_by must be some of {', '.join(kind.groups)}, not {unknown[0][:100]!r}")
    if len(set(asked)) < len(asked):
        raise InvalidQuery("group_by", "group_by names a field twice")
    return {name: kind.groups[name] for name in asked}


def _names(name: str, values: Sequence[str]) -> tuple[str, ...]:
    if len(values) > MAX_NAMES or any(len(value) > MAX_NAME_CHARS for value in values):
        raise InvalidQuery(name, f"{name} are at most {MAX_NAMES}, of {MAX_NAME_CHARS} characters")
    return tuple(values)


def _switch(name: str, text: str | None) -> bool | None:
    if text is None:
        return None
    if text not in _SWITCH:
        raise InvalidQuery(name, f"{name} must be true or false")
    return _SWITCH[text]


def parameters_of(kind: Kind) -> list[dict[str, Any]]:
    """For the description of the interface."""
    time = {"type": "integer", "minimum": 0, "maximum": MAX_TIME_S}
    limits = ", ".join(f"{width}: {default}, at most {most}" for width, (default, most) in kind.limits.items())
    start = "Unix seconds." if kind.needs_start else "Unix seconds; default: a week before the end."
    named = [
        _parameter("start_time", start, time, required=kind.needs_start),
        _parameter(
            "end_time", "Unix seconds, exclusive; default: the end of the bucket that runs.", {**time, "minimum": 1}
        ),
        _parameter("bucket_width", "UTC.", {"type": "string", "enum": [*kind.limits], "default": "1d"}),
        _parameter("group_by", "Each once; with commas, too.", _list({"enum": [*kind.groups]})),
        _parameter("limit", f"Buckets of a page ({limits}).", {"type": "integer", "minimum": 1}),
        _parameter("page", "`next_page` of the page before.", {"type": "string", "pattern": _CURSOR.pattern}),
    ]
    named += [
        _parameter(name, "Of these alone.", {**_list({"type": "string", "maxLength": MAX_NAME_CHARS}),
                                             "maxItems": MAX_NAMES})
        for name in kind.lists
    ]  # fmt: skip
    if "batch" in kind.switches:
        named.append(_parameter("batch", "Batch jobs alone, or all but them.", {"type": "boolean"}))
    if "org_id" in kind.further:
        named.append(_parameter("org_id", "Your own organisation, if given.", {"type": "string"}))
    return named


def _parameter(name: str, description: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}
