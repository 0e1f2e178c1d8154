"""Whether a history is one that may be: pure, over what clients saw, what Kafka holds and what was billed.

Nothing is lost: whatever was accepted ends, once, and its client is told so behind every token. Nothing is doubled: no
token, no end, no bill. Nobody is told a token of an attempt that others had gone on with. And what was said is what
the log says, what an engine says that nobody disturbed, and what is billed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.history.log import Generated, Log, Told
from tests.history.saw import Answer, Job

CHARGED = frozenset({"completed", "cancelled", "safety_halted", "deadline_exceeded"})
"""Endings for which tokens are charged, once a worker has begun: as analysts are told."""
BILLED = (
    "ending", "billable", "attempts", "uncached_input_tokens", "cached_input_tokens", "output_tokens",
    "reasoning_tokens", "released_tokens",
)  # fmt: skip
"""What the table has as the log has it."""

Undisturbed = Callable[[Mapping[str, Any]], Sequence[str]]
"""Of a request in its lane, the text of each token as an engine says it that is left alone."""


class Violation(NamedTuple):
    """`kind`: `lost`, `doubled`, `zombie`, `differs` or `billed`. `about`: a response, a usage event, a job."""

    kind: str
    about: str
    what: str


@dataclass
class Verdict:
    violations: list[Violation]
    counts: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


def check(
    answers: Sequence[Answer],
    jobs: Sequence[Job],
    log: Log,
    bills: Iterable[Mapping[str, Any]],
    undisturbed: Undisturbed | None = None,
) -> Verdict:
    """`bills`: the rows of the table of usage. `undisturbed` None: nobody knows what would have been said."""
    violations: list[Violation] = []
    for answer in answers:
        violations += _of_client(answer, log)
    for job in jobs:
        violations += _exactly_one(log.results.get(job.custom_id, {}), job.custom_id, "result")
    for response_id in sorted(log.requested | log.generated.keys() | log.told.keys()):
        violations += _of_response(response_id, log)
    violations += _of_bills(log, bills)
    if undisturbed is not None:
        for response_id, request in log.admitted.items():
            violations += _as_undisturbed(response_id, log.generated[response_id], undisturbed(request))
    return Verdict(
        violations,
        _counts(answers, jobs, log),
        Counter(answer.code for answer in answers if answer.code),
        Counter(answer.refused for answer in answers if answer.refused),
    )


def _counts(answers: Sequence[Answer], jobs: Sequence[Job], log: Log) -> Counter[str]:
    generated = log.generated.values()
    return Counter(
        requests=len(answers),
        jobs=len(jobs),
        responses=len(log.told),
        tokens=sum(len(each.tokens) for each in generated),
        tokens_told=sum(answer.last for answer in answers),
        continued_answers=sum(len(each.began) > 1 for each in generated),
        late_tokens_of_overtaken_attempts=sum(each.late_tokens for each in generated),
        connections_left=sum(len(answer.left) for answer in answers),
        usage_events=len(log.usage),
    )


def _exactly_one(found: Mapping[str, Any], about: str, what: str) -> Iterator[Violation]:
    if not found:
        yield Violation("lost", about, f"no {what}")
    if len(found) > 1:
        yield Violation("doubled", about, f"{len(found)} different {what}s")


def _of_client(answer: Answer, log: Log) -> Iterator[Violation]:
    """What it was told of the response that it followed, and of others for the same key."""
    about = answer.response_id
    if not about:
        if answer.code or answer.spans:
            yield Violation("differs", answer.request, "was told something of no response")
        return
    completed = [each for each in answer.response_ids if log.generated[each].code == "completed"]
    if len(completed) > 1:
        yield Violation("doubled", about, f"one key stands for {len(completed)} complete responses")
    generated = log.generated[about]
    yield from _spans(answer, generated)
    if not answer.code:
        why = f"; it heard {answer.refused or answer.left[-1]}" if answer.refused or answer.left else ""
        yield Violation("lost", about, f"its client was told no end after token {answer.last}{why}")
        return
    for terminal in log.told[about].terminals.values():
        if answer.code != terminal["code"]:
            yield Violation("differs", about, f"its client was told {answer.code}, the log says {terminal['code']}")
        if answer.terminal_sequence != terminal["sequence_number"]:
            yield Violation("differs", about, f"its client was told that it ends with {answer.terminal_sequence}")
        released = generated.tokens[: terminal["sequence_number"] - 1]
        if len(answer.text) < len("".join(token.text for token in released)):
            yield Violation("lost", about, f"its client has tokens up to {answer.last} of {len(released)}")


def _spans(answer: Answer, generated: Generated) -> Iterator[Violation]:
    """Each token once, in order, as it is in the log, and none that does not count."""
    about, known = answer.response_id, 0
    for first, last, text, emitted_at_us, _ in answer.spans:
        if first > known + 1:
            yield Violation("lost", about, f"tokens {known + 1} to {first - 1} did not come to its client")
        elif first <= known:
            yield Violation("doubled", about, f"tokens {first} to {min(known, last)} came to its client twice")
        known = max(known, last)
        said = generated.tokens[first - 1 : last]
        if emitted_at_us and emitted_at_us not in {token.emitted_at_us for token in said}:
            yield _foreign(about, generated, f"its client was told tokens {first} to {last}", emitted_at_us)
        elif text != "".join(token.text for token in said) or len(said) != last - first + 1:
            yield Violation("differs", about, f"its client was told other tokens {first} to {last} than the log has")


def _foreign(about: str, generated: Generated, what: str, emitted_at_us: int) -> Violation:
    if emitted_at_us in generated.void_us:
        return Violation("zombie", about, f"{what} from an attempt that others had gone on with, or after its end")
    return Violation("differs", about, f"{what} that nobody has emitted like that")


def _of_response(response_id: str, log: Log) -> Iterator[Violation]:
    """What the log says of it, whoever its client is."""
    generated, told = log.generated[response_id], log.told[response_id]
    if not generated.code:
        yield Violation("lost", response_id, "it has no end on generated")
    yield from _exactly_one(told.terminals, response_id, "terminal")
    for terminal in told.terminals.values():
        # What completed and was halted at its end is told so; all else is told as it ended.
        if terminal["code"] != generated.code and (generated.code, terminal["code"]) != ("completed", "safety_halted"):
            yield Violation("differs", response_id, f"ended {generated.code} and is told {terminal['code']}")
        yield from _bill_of(response_id, log, generated, terminal)
    yield from _released(response_id, generated, told)


def _released(response_id: str, generated: Generated, told: Told) -> Iterator[Violation]:
    for number, released in (*told.tokens.items(), *told.others):
        if number > len(generated.tokens):
            yield Violation("differs", response_id, f"token {number} was released, which does not count")
            continue
        token = generated.tokens[number - 1]
        if released.emitted_at_us != token.emitted_at_us:
            yield _foreign(response_id, generated, f"token {number} was released", released.emitted_at_us)
        elif released.text != token.text:
            yield Violation("differs", response_id, f"token {number} was released with other text")
    for terminal in told.terminals.values():
        missing = set(range(1, terminal["sequence_number"])) - told.tokens.keys()
        if missing:
            yield Violation("lost", response_id, f"tokens {sorted(missing)[:5]} were not released before its end")
        if told.tokens and max(told.tokens) >= terminal["sequence_number"]:
            yield Violation("doubled", response_id, f"token {max(told.tokens)} was released, beyond its end")
        all_of_it = generated.code == terminal["code"] == "completed"
        if all_of_it and terminal["sequence_number"] != len(generated.tokens) + 1:
            yield Violation("lost", response_id, "it is complete, and not all of it was released")


def _bill_of(response_id: str, log: Log, generated: Generated, terminal: Mapping[str, Any]) -> Iterator[Violation]:
    """One usage event for each choice, over the tokens that count."""
    released = 0
    for choice in range(generated.choices):
        usage_id = f"{response_id}/{choice}"
        events = log.usage.get(usage_id, {})
        yield from _exactly_one(events, usage_id, "usage event")
        for event in events.values():
            due = _due(generated, choice, terminal["code"])
            for name, value in due.items():
                if event[name] != value:
                    yield Violation("billed", usage_id, f"{name} is {event[name]}, and should be {value}")
            output = event["output_tokens"] + event["reasoning_tokens"]
            tokens = sum(token.choice == choice for token in generated.tokens)
            if output != tokens:
                yield Violation("billed", usage_id, f"{output} tokens are billed, and {tokens} count")
            inputs = event["uncached_input_tokens"] + event["cached_input_tokens"]
            if inputs != _inputs(generated, choice):
                yield Violation("billed", usage_id, f"{inputs} input tokens are billed of {_inputs(generated, choice)}")
            released += event["released_tokens"]
    if released != terminal["sequence_number"] - 1:
        what = f"{released} tokens are billed as released, and it ends after {terminal['sequence_number'] - 1}"
        yield Violation("billed", response_id, what)


def _due(generated: Generated, choice: int, code: str) -> dict[str, Any]:
    taken = bool(generated.began)
    return {"ending": code, "choice": choice, "attempts": len(generated.began), "billable": taken and code in CHARGED}


def _inputs(generated: Generated, choice: int) -> int:
    if generated.opened is None or not generated.began or choice:
        return 0
    return int(generated.opened["prompt_tokens"])


def _of_bills(log: Log, bills: Iterable[Mapping[str, Any]]) -> Iterator[Violation]:
    """The table has one row for each usage event, and says what that says."""
    rows: Counter[str] = Counter()
    for bill in bills:
        usage_id = bill["usage_id"]
        rows[usage_id] += 1
        event = next(iter(log.usage.get(usage_id, {}).values()), None)
        if event is None:
            yield Violation("billed", usage_id, "the table has it and the log does not")
            continue
        for name in BILLED:
            if bill[name] != event[name]:
                yield Violation("billed", usage_id, f"{name} is {bill[name]} in the table and {event[name]} in the log")
    for usage_id, count in rows.items():
        if count > 1:
            yield Violation("doubled", usage_id, f"the table has {count} rows of it")
    for usage_id in log.usage.keys() - rows.keys():
        yield Violation("lost", usage_id, "the table does not have it")


def _as_undisturbed(response_id: str, generated: Generated, expected: Sequence[str]) -> Iterator[Violation]:
    """Of a response with one choice."""
    said, whole = "".join(token.text for token in generated.tokens), "".join(expected)
    tokens = len(generated.tokens)
    if not whole.startswith(said):
        begin = next(n for n in range(len(said)) if not whole.startswith(said[: n + 1]))
        what = f"after {begin} characters an engine that nobody disturbs says something else"
        yield Violation("differs", response_id, what)
    elif generated.code == "completed" and (tokens, said) != (len(expected), whole):
        yield Violation(
            "lost", response_id, f"an engine that nobody disturbs says {len(expected)} tokens, not {tokens}"
        )
