"""Records of `usage` as events, read by columns: a list of values is checked as one, not value by value.

What the schema takes and no writer of ours writes (a field more or less, a number as text) is read by the schema, and
so is what fails a check here: it has the last word, and the words for what is wrong. A check here is never laxer than
its own, since each is made of the schema's field.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin

import orjson
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from billing_jobs.columns import Columned, Integers, Numbers, Texts
from schemas.base import Record, Scope
from schemas.codec import DecodeReason, Undecodable, decode
from schemas.endings import EndingCode
from schemas.usage import USAGE, AnyUsage, ComputeRecord, DeliveredCount, Presence, UsageEvent
from streams.log.port import LogRecord
from streams.topics import DAY_MS

MAX_EVENT_AGE_MS = 400 * DAY_MS
MAX_EVENT_AHEAD_MS = DAY_MS
_OF_EACH = {"scope.policy_version": 2**32}
_BOUNDS: dict[type[Record], dict[str, int]] = {
    UsageEvent: {"choice": 2**32, "attempts": 2**32, "billing_rule_version": 2**16, **_OF_EACH},
    ComputeRecord: {"engine_ms": 2**53, **_OF_EACH},
    DeliveredCount: _OF_EACH,
    Presence: _OF_EACH,
}
"""What the schema leaves unbounded must fit its column, or one record would stop its batch for ever."""
_STAGE_BOUND = 2**53
_TIMES: dict[type[Record], tuple[str, ...]] = {
    UsageEvent: ("accepted_at_ms", "ended_at_ms", "first_token_at_ms"),
    Presence: ("hour_ms",),
}
"""What a writer's own clock says; the others are dated by the log alone."""
_UNBOUNDED = 2**63 - 1
_CHUNK = 512
"""Records at once: so many as stay in a core's cache from one column to the next."""

Event = TypeVar("Event", bound=Record)
Model = TypeVar("Model", bound=BaseModel)
Check = Callable[[Sequence[Any]], bool]
"""Whether all values of a column are as the schema has them."""


class Logged(NamedTuple, Generic[Event]):
    """An event and where it stood in the log."""

    event: Event
    partition: int
    offset: int
    logged_at_ms: int


Events = Columned[Logged[Event]]
"""Columns are `choice`, `scope.tenant_id`, `offset` and the like. Endings are their codes there."""


class Unusable(NamedTuple):
    """A record for dead letters."""

    record: LogRecord
    reason: DecodeReason
    detail: str


@dataclass(frozen=True, slots=True)
class Read:
    """Records in their order, each in one of these."""

    usage: Events[UsageEvent]
    compute: Events[ComputeRecord]
    delivered: Events[DeliveredCount]
    presence: Events[Presence]
    unusable: list[Unusable]


# -- columns -----------------------------------------------------------------------------------------------------------


def _integers(least: int, most: int) -> Check:
    return lambda column: set(map(type, column)) == {int} and least <= min(column) and max(column) <= most


def _texts(shortest: int, longest: int) -> Check:
    def holds(column: Sequence[Any]) -> bool:
        if set(map(type, column)) != {str}:
            return False
        lengths = set(map(len, column))
        return shortest <= min(lengths) and max(lengths) <= longest

    return holds


def _one_of(values: Iterable[Any]) -> Check:
    allowed = frozenset(values)
    types = frozenset(map(type, allowed))
    return lambda column: types.issuperset(map(type, column)) and allowed.issuperset(column)


def _booleans(column: Sequence[Any]) -> bool:
    return set(map(type, column)) == {bool}


def _stages(column: Sequence[Any]) -> bool:
    if set(map(type, column)) != {dict}:
        return False
    times = list(chain.from_iterable(stages.values() for stages in column))
    return not times or (set(map(type, times)) == {int} and min(times) >= 0 and max(times) < _STAGE_BOUND)


def _check_of(declared: FieldInfo, bound: int) -> Check:
    """Of a field of the schema, with a bound of our own. Raises TypeError where it is of a kind that is new here."""
    kind, rules = declared.annotation, declared.metadata
    if get_origin(kind) is Literal:
        return _one_of(get_args(kind))
    if kind is bool:
        return _booleans
    if kind == dict[str, int]:
        return _stages
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _one_of(each.value for each in kind)
    bounds = {type(rule).__name__: rule for rule in rules}
    if kind is int and bounds.keys() <= {"Ge", "Le"}:
        least = bounds["Ge"].ge if "Ge" in bounds else 0
        return _integers(least, min(bounds["Le"].le if "Le" in bounds else _UNBOUNDED, bound - 1))
    if kind is str and bounds.keys() <= {"MinLen", "MaxLen"}:
        shortest = bounds["MinLen"].min_length if "MinLen" in bounds else 0
        return _texts(shortest, bounds["MaxLen"].max_length if "MaxLen" in bounds else _UNBOUNDED)
    raise TypeError(f"a field of {kind} with {rules} is read by no column")


def _kept_as(declared: FieldInfo, bound: int) -> Callable[[], Any]:
    """A column of its values, once they were checked."""
    if declared.annotation is int:
        most = min([bound - 1, *(rule.le for rule in declared.metadata if hasattr(rule, "le"))])
        return partial(Integers, "H" if most < 2**16 else "I" if most < 2**32 else "q")
    if declared.annotation == dict[str, int]:
        return Numbers
    return Texts if declared.annotation is str else list


def _made(model: type[Model], values: dict[str, Any], names: set[str]) -> Model:
    """As `model_construct` does, at a tenth of its time: there is a value of each field, and each was checked."""
    made = object.__new__(model)
    object.__setattr__(made, "__dict__", values)
    object.__setattr__(made, "__pydantic_fields_set__", names)
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made


def _as_parsed(names: Iterable[str]) -> list[str]:
    """The same objects that a parser which keeps the names that it met gives as names: they are compared at once."""
    return [*orjson.loads(orjson.dumps(dict.fromkeys(names)))]


_CODES = {code.value: code for code in EndingCode}
_SCOPE_NAMES = _as_parsed(Scope.model_fields)


_LOGGED: dict[str, Callable[[LogRecord], int]] = {
    "partition": attrgetter("partition"), "offset": attrgetter("offset"), "logged_at_ms": attrgetter("timestamp_ms"),
}  # fmt: skip
_LOGGED_AS = {
    "partition": partial(Integers, "I"),
    "offset": partial(Integers, "Q"),
    "logged_at_ms": partial(Integers, "q"),
}


class _Shape(Generic[Event]):
    """How one kind of record is laid in columns and checked."""

    def __init__(self, model: type[Event]) -> None:
        self._model = model
        self._names = _as_parsed(model.model_fields)
        fields = {name: declared for name, declared in model.model_fields.items() if name != "scope"}
        fields |= {f"scope.{name}": declared for name, declared in Scope.model_fields.items()}
        bounds = _BOUNDS[model]
        self.checks = {path: _check_of(declared, bounds.get(path, 2**64)) for path, declared in fields.items()}
        self.kept = {
            path: _kept_as(declared, bounds.get(path, 2**63)) for path, declared in fields.items()
        } | _LOGGED_AS
        self._paths = [*self._names, *(f"scope.{name}" for name in _SCOPE_NAMES)]
        self._take: Callable[[Any], tuple[Any, ...]] = itemgetter(*self._names)
        self._take_scope: Callable[[Any], tuple[Any, ...]] = itemgetter(*_SCOPE_NAMES)

    def row(self, record: dict[str, Any]) -> tuple[Any, ...] | None:
        """Its values and those of its scope; None where it has other fields than the schema."""
        scope = record.get("scope")
        if type(scope) is not dict:
            return None
        if [*record] == self._names and [*scope] == _SCOPE_NAMES:  # As we write it.
            return *record.values(), *scope.values()
        if len(record) != len(self._names) or len(scope) != len(_SCOPE_NAMES):
            return None
        try:
            return self._take(record) + self._take_scope(scope)
        except KeyError:
            return None

    def row_of(self, event: Event) -> tuple[Any, ...]:
        told = event.model_dump(mode="json")
        return self._take(told) + self._take_scope(told["scope"])

    def event(self, columns: Mapping[str, Sequence[Any]], place: int) -> Event:
        scope = {name: columns[f"scope.{name}"][place] for name in _SCOPE_NAMES}
        made = _made(Scope, scope, set(scope))
        values: dict[str, Any] = {name: made if name == "scope" else columns[name][place] for name in self._names}
        if "ending" in values:
            values["ending"] = _CODES[values["ending"]]
        return _made(self._model, values, set(values))

    def columns(self, rows: Sequence[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
        columns: dict[str, Sequence[Any]] = dict(zip(self._paths, zip(*rows, strict=True), strict=True))
        del columns["scope"]
        return columns

    def doubtful(self, columns: Mapping[str, Sequence[Any]], logged_at_ms: Sequence[int]) -> set[int]:
        """Rows that fail a check."""
        found: set[int] = set()
        for path, holds in self.checks.items():
            if not holds(columns[path]):
                found.update(index for index, value in enumerate(columns[path]) if not holds((value,)))
        for name in _TIMES.get(self._model, ()):
            found |= _impossible(name, columns[name], logged_at_ms, found)
        return found


def _impossible(name: str, times: Sequence[int], logged_at_ms: Sequence[int], known: set[int]) -> set[int]:
    """Rows whose time no honest writer can have, beside those that are `known` to be wrong: theirs may be no time."""
    earliest_ms, latest_ms = max(logged_at_ms) - MAX_EVENT_AGE_MS, min(logged_at_ms) + MAX_EVENT_AHEAD_MS
    if not known and earliest_ms <= min(times) and max(times) <= latest_ms:
        return set()
    return {
        place
        for place, (at_ms, at_log_ms) in enumerate(zip(times, logged_at_ms, strict=True))
        if place not in known and not _is_possible(name, at_ms, at_log_ms)
    }


_SHAPES: dict[str, _Shape[Any]] = {
    "usage": _Shape(UsageEvent), "compute": _Shape(ComputeRecord), "delivered": _Shape(DeliveredCount),
    "presence": _Shape(Presence),
}  # fmt: skip


# -- records -----------------------------------------------------------------------------------------------------------


class _Kind(Generic[Event]):
    """Records of one kind: what was read of all, and of this chunk where they stand, and their values."""

    def __init__(self, shape: _Shape[Event]) -> None:
        self.shape, self.row = shape, shape.row
        self._read = {path: made() for path, made in shape.kept.items()}
        self.places: list[int] = []
        self.rows: list[tuple[Any, ...]] = []
        self._columns: dict[str, Sequence[Any]] | None = None

    def read(self) -> Events[Event]:
        columns, shape = self._read, self.shape
        partitions, offsets, logged_at_ms = (columns[path] for path in _LOGGED)
        return Columned(
            columns,
            lambda place: Logged(shape.event(columns, place), partitions[place], offsets[place], logged_at_ms[place]),
        )

    def add_event(self, place: int, event: Event) -> None:
        self._columns = None
        self.places.append(place)
        self.rows.append(self.shape.row_of(event))

    def take_doubtful(self, chunk: Sequence[LogRecord]) -> list[int]:
        """The places of those that fail a check."""
        if not self.rows:
            return []
        logged_at_ms = [chunk[place].timestamp_ms for place in self.places]
        self._columns = self.shape.columns(self.rows)
        doubtful = self.shape.doubtful(self._columns, logged_at_ms)
        taken = [self.places[index] for index in doubtful]
        if doubtful:
            self._keep([index for index in range(len(self.rows)) if index not in doubtful])
        return taken

    def close(self, chunk: Sequence[LogRecord], *, in_order: bool) -> None:
        """What was added of the chunk is read."""
        if not self.rows:
            return
        if not in_order:
            self._keep(sorted(range(len(self.places)), key=self.places.__getitem__))
        for path, column in (self._columns or self.shape.columns(self.rows)).items():
            self._read[path].extend(column)
        stood = [chunk[place] for place in self.places]
        for path, value in _LOGGED.items():
            self._read[path].extend(list(map(value, stood)))
        self._keep([])

    def _keep(self, indexes: Sequence[int]) -> None:
        """These, in this order."""
        self.places = [self.places[index] for index in indexes]
        self.rows = [self.rows[index] for index in indexes]
        self._columns = None


def read_records(records: Sequence[LogRecord]) -> Read:
    """Depends on its arguments alone."""
    kinds: dict[str, _Kind[Any]] = {name: _Kind(shape) for name, shape in _SHAPES.items()}
    unusable: list[Unusable] = []
    for first in range(0, len(records), _CHUNK):
        unusable += _read_chunk(records[first : first + _CHUNK], kinds)
    return Read(
        kinds["usage"].read(), kinds["compute"].read(), kinds["delivered"].read(), kinds["presence"].read(), unusable
    )  # fmt: skip


def _read_chunk(chunk: Sequence[LogRecord], kinds: Mapping[str, _Kind[Any]]) -> list[Unusable]:
    one_by_one = _laid_in_columns(chunk, kinds)
    for kind in kinds.values():
        one_by_one += kind.take_doubtful(chunk)
    unusable = []
    for place in sorted(one_by_one):
        try:
            event = read_one(chunk[place])
        except Undecodable as error:
            unusable.append(Unusable(chunk[place], error.reason, error.detail))
        else:
            kinds[event.type].add_event(place, event)
    for kind in kinds.values():
        kind.close(chunk, in_order=not one_by_one)
    return unusable


def _laid_in_columns(chunk: Sequence[LogRecord], kinds: Mapping[str, _Kind[Any]]) -> list[int]:
    """Gives the places of those that have other fields than the schema."""
    left: list[int] = []
    for place, record in enumerate(chunk):
        try:
            parsed = orjson.loads(record.value or b"")
        except orjson.JSONDecodeError:
            left.append(place)
            continue
        name = parsed.get("type") if type(parsed) is dict else None
        kind = kinds.get(name) if type(name) is str else None
        if kind is None or (row := kind.row(parsed)) is None:
            left.append(place)
        else:
            kind.places.append(place)
            kind.rows.append(row)
    return left


def read_one(record: LogRecord) -> AnyUsage:
    """By its schema, and what its columns take. Raises Undecodable."""
    event = decode(USAGE, record.value)
    _check_integers(event)
    _check_times(event, record.timestamp_ms)
    return event


def _check_integers(event: AnyUsage) -> None:
    bounds = [(path, _at(event, path), bound) for path, bound in _BOUNDS[type(event)].items()]
    bounds += [(f"stage_ms.{stage[:40]}", at_ms, _STAGE_BOUND) for stage, at_ms in event.stage_ms.items()]
    for name, value, bound in bounds:
        if not 0 <= value < bound:
            raise Undecodable("invalid", f"{name}: not in [0, {bound})")


def _at(event: AnyUsage, path: str) -> int:
    name, _, rest = path.partition(".")
    return int(getattr(event.scope, rest) if rest else getattr(event, name))


def _check_times(event: AnyUsage, logged_at_ms: int) -> None:
    """Times that no honest writer can have: they would choose a price, or scatter one batch over many partitions."""
    for name in _TIMES.get(type(event), ()):
        if not _is_possible(name, getattr(event, name), logged_at_ms):
            raise Undecodable("invalid", f"{name}: more than 400 days before or one day after the record's own time")


def _is_possible(name: str, at_ms: int, logged_at_ms: int) -> bool:
    if name == "first_token_at_ms" and not at_ms:
        return True
    return logged_at_ms - MAX_EVENT_AGE_MS <= at_ms <= logged_at_ms + MAX_EVENT_AHEAD_MS
