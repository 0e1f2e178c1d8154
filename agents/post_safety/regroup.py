"""Released tokens of many responses, regrouped into one `Release` record per partition of `responses`."""

from collections.abc import Sequence

import orjson

from agents.post_safety.effects import Released, ReleasedRow
from agents.post_safety.strands import NO_TOOLS
from schemas.base import SCHEMA_VERSION

MAX_CHARS = 500_000
"""Of one record's text: at six bytes a character and with its columns still below the topic's record size."""
MAX_ROWS = 8_192
_FIGURE_CHARS = 5
"""What a probability and what stands around it takes, in characters of text."""


def _measure(rows: Sequence[ReleasedRow]) -> tuple[int, bool]:
    """What they take of a record, as characters of text, and whether a response begins among them."""
    chars, begins = 0, False
    # One loop, because it runs once per token.
    for _, _, _, first_sequence, _, text, _, _, logprobs in rows:
        chars += len(text)
        if first_sequence == 1:
            begins = True
        if logprobs is not None:
            chars += sum(len(likely) + _FIGURE_CHARS for token in logprobs for likely, _ in token)
    return chars, begins


class Group:
    """An encoded record, its size, and the `emitted_at_us` of its oldest token."""

    __slots__ = ("oldest_emitted_at_us", "partition", "rows", "tokens", "value")

    def __init__(self, partition: int, rows: Sequence[ReleasedRow]) -> None:
        scope_json, response_id, choice, first_sequence, strand, text, text_ends, emitted_at_us, logprobs = zip(
            *rows, strict=True
        )
        scopes = {scope: index for index, scope in enumerate(dict.fromkeys(scope_json))}
        self.partition = partition
        self.rows = len(rows)
        self.tokens = sum(map(len, text_ends))
        self.oldest_emitted_at_us = min(emitted_at_us)
        # The bytes of `Release.encode`, at a fraction of its cost.
        record: dict[str, object] = {
            "schema_version": SCHEMA_VERSION,
            "stage_ms": {},
            "type": "release",
            "scopes": [orjson.Fragment(scope) for scope in scopes],
            "scope": [scopes[scope] for scope in scope_json],
            "response_id": response_id,
            "choice": choice,
            "first_sequence": first_sequence,
            "kind": strand,
            "text": text,
            "text_ends": text_ends,
            "emitted_at_us": emitted_at_us,
        }
        if not NO_TOOLS.issuperset(strand):
            record["kind"] = [each if isinstance(each, str) else each.kind for each in strand]
            record["call"] = [0 if isinstance(each, str) else each.call for each in strand]
        if any(logprobs):
            record["logprobs"] = logprobs
        self.value = orjson.dumps(record)


class _Waiting:
    """Rows of one partition that leave at `due_ms`."""

    __slots__ = ("chars", "due_ms", "rows")

    def __init__(self, due_ms: float) -> None:
        self.due_ms = due_ms
        self.chars = 0
        self.rows: list[ReleasedRow] = []


class Regrouper:
    """Holds rows for at most `regroup_ms`; a response's first token makes its partition's rows due at once.

    Pure: time is a parameter, in milliseconds of any clock that does not run backwards. Rows keep their order.
    """

    def __init__(self, regroup_ms: float) -> None:
        self._regroup_ms = regroup_ms
        self._waiting: dict[int, _Waiting] = {}

    def add(self, released: Released, now_ms: float) -> list[Group]:
        """Takes rows; returns the records that had to leave to make room for them."""
        partition, rows = released
        chars, begins = _measure(rows)
        if len(rows) > 1 and (chars > MAX_CHARS or len(rows) > MAX_ROWS):
            half = len(rows) // 2
            return [
                *self.add(Released(partition, rows[:half]), now_ms),
                *self.add(Released(partition, rows[half:]), now_ms),
            ]
        full: list[Group] = []
        waiting = self._waiting.get(partition)
        if waiting is not None and (waiting.chars + chars > MAX_CHARS or len(waiting.rows) + len(rows) > MAX_ROWS):
            full.append(Group(partition, self._waiting.pop(partition).rows))
            waiting = None
        if waiting is None:
            waiting = self._waiting[partition] = _Waiting(now_ms + self._regroup_ms)
        waiting.chars += chars
        waiting.rows += rows
        if begins:
            waiting.due_ms = now_ms
        return full

    def take(self, partition: int) -> Group | None:
        """The rows of a partition, now."""
        waiting = self._waiting.pop(partition, None)
        return None if waiting is None else Group(partition, waiting.rows)

    def take_due(self, now_ms: float) -> list[Group]:
        due = [partition for partition, waiting in self._waiting.items() if waiting.due_ms <= now_ms]
        return [Group(partition, self._waiting.pop(partition).rows) for partition in due]

    def take_all(self) -> list[Group]:
        return [Group(partition, self._waiting.pop(partition).rows) for partition in list(self._waiting)]

    def due_in_ms(self, now_ms: float) -> float | None:
        """How long the oldest row may still wait; None when there is none."""
        if not self._waiting:
            return None
        return max(0.0, min(waiting.due_ms for waiting in self._waiting.values()) - now_ms)
