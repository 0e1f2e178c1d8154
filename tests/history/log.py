"""What Kafka holds, put together by response. Not one rule is imported of what is judged.

Each topic in the order of its partitions' offsets; between topics there is none.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Logged(NamedTuple):
    """A record. `topic`: without the region, and `lane` for any lane, `results` for those of any tenant. What was
    removed from a topic that is compacted has no fields.
    """

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
    choice: int
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
    refused: Mapping[str, Any] | None = None
    """The ending of what was never opened."""
    began: list[Began] = field(default_factory=list)
    since: int = -1
    """Where the first fence stands that counts."""
    tokens: list[Token] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)
    code: str = ""
    cached_tokens: int = 0
    """Of its prompt, found by the attempt that its first token is of."""
    is_spoilt: bool = False
    """A row of the attempt could not be used: no more of them counts."""
    void_us: set[int] = field(default_factory=set)
    """When rows were emitted that do not count."""
    late_tokens: int = 0
    """Of attempts that others had gone on with."""
    moves: int = 0
    before_move: int = 0
    """How many had begun when it was last moved to another pool."""
    moved_to: Mapping[str, Any] = field(default_factory=dict)
    """What the fence says that began it there, of who answers; empty: it is as `opened` says."""

    @property
    def choices(self) -> int:
        return 1 if self.opened is None else int(self.opened.get("choices", 1))

    @property
    def about(self) -> Mapping[str, Any]:
        """What says whose it is, for whom."""
        return self.opened or self.refused or {}

    @property
    def is_of_vectors(self) -> bool:
        """What is embedded has no output: each of its tokens is a vector, and its prompt alone is billed."""
        return bool(self.about.get("endpoint") == "embeddings")

    @property
    def tenant(self) -> str:
        return str(self.about["scope"]["tenant_id"]) if self.about else ""

    @property
    def custom_id(self) -> str | None:
        """Of a producer's job."""
        name: str | None = self.about.get("reply_to", {}).get("custom_id")
        return name

    @property
    def served(self) -> Mapping[str, Any]:
        """`opened`, with the model and the pool that answer; empty where it was never opened."""
        return {} if self.opened is None else {**self.opened, **self.moved_to}

    @property
    def fallback(self) -> Mapping[str, Any] | None:
        """Of what another model answers than the one that was asked for: which that was, and why."""
        answered_by: Mapping[str, Any] | None = self.served.get("fallback")
        return answered_by

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
        if self.moves and not self.tokens:
            self.moved_to = {
                "pool": record["pool"], "model": record["model"], "prompt_tokens": record.get("prompt_tokens", 0),
                "fallback": record.get("fallback"),
            }  # fmt: skip
        self.is_spoilt = False
        self.began.append(Began(attempt_id, record["worker_id"], at_ms))

    def row(
        self, attempt_id: str, choice: int, first: int, texts: list[str], finish: str, emitted_at_us: int,
        cached_tokens: int = 0,
    ) -> None:  # fmt: skip
        if self.code or attempt_id != self.attempt_id or self.is_spoilt:
            self.void_us.add(emitted_at_us)
            if attempt_id in {each.attempt_id for each in self.began[:-1]}:
                self.late_tokens += len(texts)
            return
        known = len(self.tokens) + 1 - first
        if not 0 <= choice < self.choices or choice in self.finished or known < 0:
            self.void_us.add(emitted_at_us)
            return
        if first == 1 and not known:
            self.cached_tokens = cached_tokens
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
                self.code, self.refused = record["code"], record
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


def lane_of(move: int) -> str:
    """What the lane is called where one had been moved so often."""
    return f"lane after {move} moves" if move else "lane"


def _canonical(record: Mapping[str, Any]) -> str:
    return json.dumps(record, sort_keys=True)


def _texts(text: str, ends: list[int]) -> list[str]:
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


class Log:
    """All that was read, by response. `requested`: each time that it was written. `admitted`: as it stands in a lane,
    by how often it had been moved by then. `places`: where of a topic it stands; of a lane, for each of these times.
    `usage`: by usage id, and `results` by custom id, each that is different. `phrases`: by the digest of a policy.
    """

    def __init__(self) -> None:
        self.requested: dict[str, list[Mapping[str, Any]]] = {}
        self.admitted: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
        self.generated: dict[str, Generated] = defaultdict(Generated)
        self.told: dict[str, Told] = defaultdict(Told)
        self.places: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.phrases: dict[str, Sequence[str]] = {}
        self.usage: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        self.used_at_ms: dict[str, int] = {}
        self.results: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)

    def take(self, record: Logged) -> None:
        value = record.value
        match record.topic, value.get("type"):
            case "requests", _:
                self.requested.setdefault(value["response_id"], []).append(value)
            case "lane", _:
                move = value.get("move", 0)
                self.admitted[value["response_id"]].setdefault(move, value)
                if not value.get("spills"):  # what a worker has given away stands where admission has not put it
                    place = f"{value['pool']}/{value['lane']}/{record.partition}"
                    self.places[lane_of(move), value["response_id"]].add(place)
            case "generated", _:
                self._generated(record)
            case "responses", "release":
                self._release(record)
            case "responses", kind:
                self._stands(value["response_id"], record)
                if kind == "terminal":
                    self.told[value["response_id"]].terminals[_canonical(value)] = value
            case "usage", "usage":
                self.usage[value["usage_id"]][_canonical(value)] = value
                self.used_at_ms[value["response_id"]] = record.at_ms
            case "results", _:
                self.results[value["custom_id"]][_canonical(value)] = value
            case "policies", "output_policy":
                self.phrases[value["digest"]] = value["output_deny"]

    def _stands(self, response_id: str, record: Logged) -> None:
        self.places[record.topic, response_id].add(str(record.partition))

    def _generated(self, record: Logged) -> None:
        value = record.value
        if value["type"] == "frame":
            self._frame(record)
            return
        self._stands(value["response_id"], record)
        generated = self.generated[value["response_id"]]
        match value["type"]:
            case "opened":
                generated.open(value)
            case "fence":
                generated.fence(value, record.offset, record.at_ms)
            case "ending":
                generated.ending(value)

    def _frame(self, record: Logged) -> None:
        frame = record.value
        for response_id, attempt_id, choice, first, tokens, text, ends, finish, cached in zip(
            frame["response_id"], frame["attempt_id"], frame["choice"], frame["first_sequence"], frame["token_ids"],
            frame["text"], frame["text_ends"], frame["finish"], frame["cached_tokens"], strict=True,
        ):  # fmt: skip
            self._stands(response_id, record)
            generated = self.generated[response_id]
            if len(tokens) != len(ends) or ends != sorted(ends) or (ends and ends[-1] != len(text)):
                generated.spoil(attempt_id)
                continue
            generated.row(attempt_id, choice, first, _texts(text, ends), finish, frame["emitted_at_us"], cached)

    def _release(self, record: Logged) -> None:
        release = record.value
        for response_id, choice, first, text, ends, emitted_at_us in zip(
            release["response_id"], release["choice"], release["first_sequence"], release["text"],
            release["text_ends"], release["emitted_at_us"], strict=True,
        ):  # fmt: skip
            self._stands(response_id, record)
            told = self.told[response_id]
            for number, each in enumerate(_texts(text, ends), first):
                told.token(number, Released(each, choice, emitted_at_us))
