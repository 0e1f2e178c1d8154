"""What Kafka holds, put together by response. It shares no code with what it judges: not one rule is imported.

Each topic in the order of its partitions' offsets; between topics there is none.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Logged(NamedTuple):
    """A record. `topic`: without the region, and `lane` for any lane, `results` for those of any tenant."""

    topic: str
    partition: int
    offset: int
    at_ms: int
    value: Mapping[str, Any]


class Token(NamedTuple):
    text: str
    choice: int
    emitted_at_us: int


class Released(NamedTuple):
    text: str
    emitted_at_us: int


class Began(NamedTuple):
    """An attempt whose fence counts, and when the broker had that."""

    attempt_id: str
    worker_id: str
    at_ms: int


@dataclass(slots=True)
class Generated:
    """What counts of a response on `generated`."""

    opened: Mapping[str, Any] | None = None
    began: list[Began] = field(default_factory=list)
    since: int = -1
    """Where the first fence stands that counts."""
    tokens: list[Token] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)
    code: str = ""
    is_spoilt: bool = False
    """A row of the attempt could not be used: no more of them counts."""
    void_us: set[int] = field(default_factory=set)
    """When rows were emitted that do not count."""
    late_tokens: int = 0
    """Of attempts that others had gone on with."""
    moves: int = 0
    before_move: int = 0
    """How many had begun when it was last moved to another pool."""

    @property
    def choices(self) -> int:
        return 1 if self.opened is None else int(self.opened.get("choices", 1))

    @property
    def attempt_id(self) -> str:
        return self.began[-1].attempt_id if len(self.began) > self.before_move else ""

    def open(self, record: Mapping[str, Any]) -> None:
        if self.opened is None and not self.code:
            self.opened = record

    def fence(self, record: Mapping[str, Any], offset: int, at_ms: int) -> None:
        attempt_id = record["attempt_id"]
        if self.opened is None or self.code or attempt_id in {each.attempt_id for each in self.began}:
            return
        if record.get("move", 0) != self.moves:
            return
        if record["kind"] == "fresh" and (self.tokens or self.finished):
            return
        if record["kind"] == "takeover" and 0 <= self.since < record.get("since_offset", 0):
            return
        if self.since < 0:
            self.since = offset
        self.is_spoilt = False
        self.began.append(Began(attempt_id, record["worker_id"], at_ms))

    def row(self, attempt_id: str, choice: int, first: int, texts: list[str], finish: str, emitted_at_us: int) -> None:
        if self.code or attempt_id != self.attempt_id or self.is_spoilt:
            self.void_us.add(emitted_at_us)
            if attempt_id in {each.attempt_id for each in self.began[:-1]}:
                self.late_tokens += len(texts)
            return
        known = len(self.tokens) + 1 - first
        if not 0 <= choice < self.choices or choice in self.finished or known < 0:
            self.void_us.add(emitted_at_us)
            return
        self.tokens += [Token(text, choice, emitted_at_us) for text in texts[known:]]
        if finish:
            self.finished.add(choice)
            if len(self.finished) == self.choices:
                self.code = "completed"

    def spoil(self, attempt_id: str) -> None:
        """A row of it could not be used."""
        self.is_spoilt = self.is_spoilt or attempt_id == self.attempt_id

    def ending(self, record: Mapping[str, Any]) -> None:
        attempt_id, move = record.get("attempt_id"), record.get("move", 0)
        if self.code or (attempt_id is not None and (move, attempt_id) != (self.moves, self.attempt_id)):
            return
        if self.opened is None:
            if record["written_by"] == "admission" and attempt_id is None:
                self.code = record["code"]
            return
        if record.get("elsewhere"):
            if move != self.moves:
                return
            if move < len(self.opened.get("further", ())) and not self.tokens and not self.finished:
                self.moves, self.before_move, self.since, self.is_spoilt = move + 1, len(self.began), -1, False
                return
            if record["written_by"] == "post-safety":
                return
        self.code = record["code"]


@dataclass(slots=True)
class Told:
    """What `responses` tells: each token by its number, what else was written under that, and the different ends."""

    tokens: dict[int, Released] = field(default_factory=dict)
    others: list[tuple[int, Released]] = field(default_factory=list)
    terminals: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def token(self, number: int, released: Released) -> None:
        """A writer that begins anew writes the same again."""
        if self.tokens.setdefault(number, released) != released:
            self.others.append((number, released))


def _canonical(record: Mapping[str, Any]) -> str:
    return json.dumps(record, sort_keys=True)


def _texts(text: str, ends: list[int]) -> list[str]:
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


class Log:
    """All that was read, by response. `usage`: by usage id, and `results` by custom id, each that is different."""

    def __init__(self) -> None:
        self.requested: set[str] = set()
        self.admitted: dict[str, Mapping[str, Any]] = {}
        self.generated: dict[str, Generated] = defaultdict(Generated)
        self.told: dict[str, Told] = defaultdict(Told)
        self.usage: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        self.results: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)

    def take(self, record: Logged) -> None:
        value = record.value
        match record.topic, value.get("type"):
            case "requests", _:
                self.requested.add(value["response_id"])
            case "lane", _:
                self.admitted.setdefault(value["response_id"], value)
            case "generated", "frame":
                self._frame(value)
            case "generated", "opened":
                self.generated[value["response_id"]].open(value)
            case "generated", "fence":
                self.generated[value["response_id"]].fence(value, record.offset, record.at_ms)
            case "generated", "ending":
                self.generated[value["response_id"]].ending(value)
            case "responses", "release":
                self._release(value)
            case "responses", "terminal":
                self.told[value["response_id"]].terminals[_canonical(value)] = value
            case "usage", "usage":
                self.usage[value["usage_id"]][_canonical(value)] = value
            case "results", _:
                self.results[value["custom_id"]][_canonical(value)] = value

    def _frame(self, frame: Mapping[str, Any]) -> None:
        for response_id, attempt_id, choice, first, tokens, text, ends, finish in zip(
            frame["response_id"], frame["attempt_id"], frame["choice"], frame["first_sequence"], frame["token_ids"],
            frame["text"], frame["text_ends"], frame["finish"], strict=True,
        ):  # fmt: skip
            generated = self.generated[response_id]
            if len(tokens) != len(ends) or ends != sorted(ends) or (ends and ends[-1] != len(text)):
                generated.spoil(attempt_id)
                continue
            generated.row(attempt_id, choice, first, _texts(text, ends), finish, frame["emitted_at_us"])

    def _release(self, release: Mapping[str, Any]) -> None:
        for response_id, first, text, ends, emitted_at_us in zip(
            release["response_id"], release["first_sequence"], release["text"], release["text_ends"],
            release["emitted_at_us"], strict=True,
        ):  # fmt: skip
            told = self.told[response_id]
            for number, each in enumerate(_texts(text, ends), first):
                told.token(number, Released(each, emitted_at_us))
