"""What clients saw, beside the log: each its own answer, token by token, and its end."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.history.log import Generated, Log
from tests.history.saw import Answer
from tests.history.violation import Violation


def of_clients(answers: Sequence[Answer], log: Log) -> Iterator[Violation]:
    asked: dict[str, list[str]] = defaultdict(list)
    for response_id, requests in log.requested.items():
        asked[prompt_of(requests[0])].append(response_id)
    for answer in answers:
        yield from _of_client(answer, log)
        yield from _of_responses(answer, asked[answer.prompt] if answer.prompt else answer.response_ids, log)
    prompts = {answer.prompt for answer in answers}
    if all(prompts):
        for prompt in asked.keys() - prompts:
            for response_id in asked[prompt]:
                yield Violation("differs", response_id, "no client asked for it")


def prompt_of(request: Mapping[str, Any]) -> str:
    """Of a request that chats."""
    return "".join(part["text"] for message in request["messages"] for part in message["content"])


def _of_responses(answer: Answer, response_ids: Sequence[str], log: Log) -> Iterator[Violation]:
    """Of all that were made of its question, told or not: it is answered once. `answer.prompt` is no other's."""
    about = answer.response_id or answer.request
    completed = [each for each in response_ids if log.generated[each].code == "completed"]
    if len(completed) > 1:
        yield Violation("doubled", about, f"one question stands for {len(completed)} complete responses")
    if not answer.key and len(response_ids) > 1:
        yield Violation("doubled", about, f"it was asked once and became {len(response_ids)} requests")
    if not answer.prompt:
        return
    for response_id in answer.response_ids:
        if response_id in log.requested and response_id not in response_ids:
            yield Violation("differs", response_id, f"its client ({answer.request}) asked something else")
    for response_id in response_ids:
        if (tenant := log.requested[response_id][0]["scope"]["tenant_id"]) != answer.tenant:
            yield Violation("differs", response_id, f"{answer.tenant} asked for it, and it is {tenant}'s")


def _of_client(answer: Answer, log: Log) -> Iterator[Violation]:
    """What it was told of the response that it followed."""
    about = answer.response_id
    why = f"; it heard {answer.refused or answer.left[-1]}" if answer.refused or answer.left else ""
    if not about:
        if answer.code or answer.spans:
            yield Violation("differs", answer.request, "was told something of no response")
        elif not answer.refused:
            yield Violation("lost", answer.request, f"its client was told nothing at all{why}")
        return
    generated = log.generated[about]
    yield from _spans(answer, generated)
    if not answer.code:
        yield Violation("lost", about, f"its client was told no end after token {answer.last}{why}")
        return
    for terminal in log.told[about].terminals.values():
        if answer.code != terminal["code"]:
            yield Violation("differs", about, f"its client was told {answer.code}, the log says {terminal['code']}")
        if answer.terminal_sequence != terminal["sequence_number"]:
            yield Violation("differs", about, f"its client was told that it ends with {answer.terminal_sequence}")
        if answer.usage is not None and answer.usage != terminal["usage"]:
            yield Violation("differs", about, f"its client was told to have used {answer.usage}")
        if answer.model not in ("", terminal["model"]):
            yield Violation("differs", about, f"its client was told that {answer.model} has answered")
        released = generated.tokens[: terminal["sequence_number"] - 1]
        if len(answer.text) < len("".join(token.text for token in released)):
            yield Violation("lost", about, f"its client has tokens up to {answer.last} of {len(released)}")


def _spans(answer: Answer, generated: Generated) -> Iterator[Violation]:
    """Each token once, in order, as it is in the log, and none that does not count.

    What replay has joined tells of all of it when the last of it was emitted; it parts what it joined by choices.
    """
    about, known = answer.response_id, 0
    emitted_us = {token.emitted_at_us for token in generated.tokens}
    for first, last, text, emitted_at_us, _, choice in answer.spans:
        if first > known + 1:
            yield Violation("lost", about, f"tokens {known + 1} to {first - 1} did not come to its client")
        elif first <= known:
            yield Violation("doubled", about, f"tokens {first} to {min(known, last)} came to its client twice")
        known = max(known, last)
        said = generated.tokens[first - 1 : last]
        if emitted_at_us and emitted_at_us not in emitted_us:
            yield foreign(about, generated, f"its client was told tokens {first} to {last}", emitted_at_us)
        elif text != "".join(token.text for token in said) or len(said) != last - first + 1:
            yield Violation("differs", about, f"its client was told other tokens {first} to {last} than the log has")
        elif any(token.text and token.choice != choice for token in said):
            yield Violation("differs", about, f"its client was told tokens {first} to {last} as of choice {choice}")


def foreign(about: str, generated: Generated, what: str, emitted_at_us: int) -> Violation:
    """Of a token that is not the one that counts."""
    if emitted_at_us in generated.void_us:
        return Violation("zombie", about, f"{what} from an attempt that others had gone on with, or after its end")
    return Violation("differs", about, f"{what} that nobody has emitted like that")
