"""What the log says of a response, whoever its client is: one place, one end, each token that counts, told once."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from tests.history.clients import foreign
from tests.history.log import Generated, Log, Token, Told, lane_of
from tests.history.violation import Violation, exactly_one

SAME = ("model", "requested_model", "pool", "lane", "endpoint")
"""What its lane has as `opened` has it, or the fence that began it there, where it was moved."""


NOTHING_DENIED = sha256(b"[]").hexdigest()
"""The digest of no phrases, which nobody writes down."""


def of_response(response_id: str, log: Log, endings: Collection[str] | None) -> Iterator[Violation]:
    """`endings`: those that it may have; None: any."""
    generated, told = log.generated[response_id], log.told[response_id]
    yield from _routed(response_id, log)
    if not generated.code:
        yield Violation("lost", response_id, "it has no end on generated")
    yield from exactly_one(told.terminals, response_id, "terminal")
    phrases = _phrases(generated, log)
    for terminal in told.terminals.values():
        code = terminal["code"]
        if endings is not None and code not in endings:
            yield Violation("differs", response_id, f"ended {code}, which nobody caused")
        # What completed and was halted at its end is told so; all else is told as it ended.
        if code != generated.code and (generated.code, code) != ("completed", "safety_halted"):
            yield Violation("differs", response_id, f"ended {generated.code} and is told {code}")
        if generated.opened is not None:
            served = (generated.served["model"], generated.fallback)
            if (by := (terminal["model"], terminal.get("fallback"))) != served:
                yield Violation("differs", response_id, f"answered by {served}, and told as answered by {by}")
        yield from _as_far_as_it_may(response_id, generated, told, terminal, phrases)
    yield from _released(response_id, generated, told)


def _routed(response_id: str, log: Log) -> Iterator[Violation]:
    """All of it stands in one place of each topic, of lanes in one for each move, and is about the same request."""
    generated, admitted = log.generated[response_id], log.admitted.get(response_id, {})
    for topic in (*map(lane_of, admitted), "generated", "responses"):
        if len(places := log.places[topic, response_id]) > 1:
            yield Violation("doubled", response_id, f"it stands in {len(places)} places of {topic}: {sorted(places)}")
    opened = generated.opened
    if admitted and opened is None:
        yield Violation("lost", response_id, "it is in a lane and was not opened")
    if opened is None:
        return
    if admitted and max(admitted) > generated.moves:
        yield Violation("differs", response_id, f"it is in a lane as moved {max(admitted)} times, of {generated.moves}")
    for move, lane in admitted.items():
        # Of one that was moved the lane says who is to answer, until one has begun it there.
        where = generated.served if move == generated.moves and generated.moved_to else opened if not move else lane
        due = {**opened, **{name: where[name] for name in ("model", "pool")}}
        for name in SAME:
            if lane[name] != due[name]:
                yield Violation("differs", response_id, f"{name} is {lane[name]} in its lane, {due[name]} as begun")
        if lane["pool"] not in (opened["pool"], *opened.get("further", ())):
            yield Violation("differs", response_id, f"it is in a lane of {lane['pool']}, which may not answer it")
    if (requests := log.requested.get(response_id)) is not None:
        asked = [(each["scope"]["tenant_id"], each["model"], each["accepted_at_ms"]) for each in requests]
        taken = (opened["scope"]["tenant_id"], opened["requested_model"], opened["accepted_at_ms"])
        if taken not in asked:
            yield Violation("differs", response_id, f"asked was {asked}, and opened is {taken}")
    elif opened["reply_to"].get("results_topic") is None:
        yield Violation("differs", response_id, "no gateway asked for it")


def _phrases(generated: Generated, log: Log) -> Sequence[str] | None:
    """Those that it is held against, as they are; None if nobody has written them."""
    digest = (generated.opened or {}).get("output_policy", "")
    return () if digest in ("", NOTHING_DENIED) else log.phrases.get(digest)


def said(tokens: Sequence[Token], choice: int) -> str:
    return "".join(token.text for token in tokens if token.choice == choice)


def _as_far_as_it_may(
    response_id: str, generated: Generated, told: Told, terminal: Mapping[str, Any], phrases: Sequence[str] | None
) -> Iterator[Violation]:
    """All that counts was released, unless a phrase was denied: then what stands before that, and nothing of it."""
    tokens, until = generated.tokens, terminal["sequence_number"] - 1
    missing = set(range(1, until + 1)) - told.tokens.keys()
    if missing:
        yield Violation("lost", response_id, f"tokens {sorted(missing)[:5]} were not released before its end")
    if told.tokens and max(told.tokens) > until:
        yield Violation("doubled", response_id, f"token {max(told.tokens)} was released, beyond its end")
    if phrases is None:
        yield Violation("lost", response_id, "the phrases that it is held against are not on the log")
        return
    denied = {
        choice: min(places)
        for choice in range(generated.choices)
        if (places := [at for each in phrases if (at := said(tokens, choice).lower().find(each.lower())) >= 0])
    }
    for choice, at in denied.items():
        if len(said(tokens[:until], choice)) > at:
            yield Violation("differs", response_id, f"what its tenant denied was released, of choice {choice}")
    if terminal["code"] != "safety_halted" and not denied and until != len(tokens):
        yield Violation("lost", response_id, f"it was released up to token {until} of {len(tokens)}")
    if terminal["code"] == "safety_halted" and not denied:
        yield Violation("lost", response_id, f"it was halted after token {until}, and says nothing that is denied")
    if generated.choices == 1 and denied and until < (least := _before(tokens, denied[0])):
        yield Violation("lost", response_id, f"it was released up to token {until}, and {least} come before the phrase")


def _before(tokens: Sequence[Token], at: int) -> int:
    """How many stand wholly before the word that begins there, whatever separates it from them."""
    text = said(tokens, 0)[:at]
    while text and not text[-1].isalnum():
        text = text[:-1]
    end = 0
    for number, token in enumerate(tokens):
        end += len(token.text)
        if end > len(text):
            return number
    return len(tokens)


def _released(response_id: str, generated: Generated, told: Told) -> Iterator[Violation]:
    for number, released in (*told.tokens.items(), *told.others):
        if number > len(generated.tokens):
            yield Violation("differs", response_id, f"token {number} was released, which does not count")
            continue
        token = generated.tokens[number - 1]
        if released.emitted_at_us != token.emitted_at_us:
            yield foreign(response_id, generated, f"token {number} was released", released.emitted_at_us)
        elif (released.text, released.choice) != (token.text, token.choice):
            yield Violation("differs", response_id, f"token {number} was released with other text")


def as_undisturbed(response_id: str, generated: Generated, expected: Sequence[Sequence[str]]) -> Iterator[Violation]:
    """`expected`: of each choice."""
    if len(expected) != generated.choices:
        yield Violation("differs", response_id, f"{len(expected)} answers were asked for, and {generated.choices} made")
        return
    for choice, texts in enumerate(expected):
        answer, whole = said(generated.tokens, choice), "".join(texts)
        tokens = sum(token.choice == choice for token in generated.tokens)
        if not whole.startswith(answer):
            begin = next(n for n in range(len(answer)) if not whole.startswith(answer[: n + 1]))
            what = f"after {begin} characters of choice {choice} an engine that nobody disturbs says something else"
            yield Violation("differs", response_id, what)
        elif generated.code == "completed" and (tokens, answer) != (len(texts), whole):
            what = f"an engine that nobody disturbs says {len(texts)} tokens of choice {choice}, not {tokens}"
            yield Violation("lost", response_id, what)
