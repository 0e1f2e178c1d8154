"""Producers' jobs: each that Kafka acknowledged has one result, which is what was released of its response."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.history.log import Generated, Log
from tests.history.responses import said
from tests.history.saw import Job
from tests.history.violation import Violation, exactly_one

ANSWERED = frozenset({"completed", "safety_halted"})
"""Endings whose result is an answer; all others are told as errors."""


def of_jobs(jobs: Sequence[Job], log: Log) -> Iterator[Violation]:
    for job in jobs:
        results = log.results.get(job.custom_id, {})
        if results or not job.failed:
            yield from exactly_one(results, job.custom_id, "result")
    known = {job.custom_id for job in jobs}
    for custom_id, results in log.results.items():
        if custom_id not in known:
            yield Violation("differs", custom_id, "it has a result, and no producer asked for it")
        for result in results.values():
            yield from _of_result(custom_id, result, log)
    for response_id, generated in log.generated.items():
        if (asked := generated.custom_id) is not None and asked not in log.results:
            yield Violation("lost", response_id, f"no result of {asked} says how it ended")


def code_of(result: Mapping[str, Any], log: Log) -> str:
    """How its response ended, as its client is told; empty where it is told nowhere."""
    terminals = log.told[result["id"]].terminals if result["id"] in log.told else {}
    return next((str(terminal["code"]) for terminal in terminals.values()), "")


def _of_result(custom_id: str, result: Mapping[str, Any], log: Log) -> Iterator[Violation]:
    code, response, error = code_of(result, log), result.get("response"), result.get("error")
    generated = log.generated.get(result["id"])
    if generated is None or not code:
        yield Violation("differs", custom_id, "its result is of a response that has not ended")
        return
    if generated.custom_id != custom_id:
        yield Violation("differs", custom_id, f"its result is that of {generated.custom_id}")
    if error is not None and (error["code"] != code or code in ANSWERED):
        yield Violation("differs", custom_id, f"it ended {code}, and its result says {error['code']}")
    if (response is None) == (error is None) or (response is not None) != (code in ANSWERED):
        yield Violation("differs", custom_id, f"it ended {code}, which its result does not say")
    elif response is not None:
        yield from _of_answer(custom_id, result, generated, log)


def _of_answer(custom_id: str, result: Mapping[str, Any], generated: Generated, log: Log) -> Iterator[Violation]:
    body = result["response"]["body"]
    [terminal] = [*log.told[result["id"]].terminals.values()][:1]
    released = generated.tokens[: terminal["sequence_number"] - 1]
    told = [choice["message"]["content"] or "" for choice in body["choices"]]
    if told != [said(released, choice) for choice in range(generated.choices)]:
        yield Violation("differs", custom_id, "its result has another text than was released")
    reasons = [choice["finish_reason"] for choice in body["choices"]]
    if reasons != terminal["finish_reasons"]:
        yield Violation("differs", custom_id, f"its result says that it ended by {reasons}")
    used, counted = body["usage"], terminal["usage"]
    if any(used[name] != counted[name] for name in ("prompt_tokens", "completion_tokens")):
        yield Violation("differs", custom_id, f"its result says that it used {used}")
