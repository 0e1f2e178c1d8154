"""What comes of an ending: the terminal, the bill, the line of a batch. Pure functions of the response."""

from collections.abc import Iterator
from typing import Literal

from agents.post_safety.bodies import body_of, is_answer, is_of_vectors, with_numbers_if_few
from agents.post_safety.effects import NOWHERE, Effect, Emit
from agents.post_safety.state import Response, Tally
from schemas.batch import BatchError, BatchResponse, BatchResult
from schemas.endings import ENDINGS, EndingCode, Reached
from schemas.generated import Ending, Opened, StoppedBy
from schemas.request import ReplyTo
from schemas.responses import Terminal, TokenUsage
from schemas.usage import UsageEvent
from streams.dialects.names import OF_ENDPOINTS, Names, in_words_of
from streams.dialects.openai_embeddings import format_in
from streams.ids import stable_partition

_RETRY_MS = 1_000
_RETRY_JITTER_MS = 4_000


def of_response(response: Response, code: EndingCode, ending: Ending | None, ended_at_ms: int) -> Iterator[Effect]:
    """How an opened response ended. `ending` is the record that said so; None when its last choice finished."""
    opened = response.served
    reasons = [_finish_reason(response, choice, code) for choice in range(opened.choices)]
    usage = _token_usage(response)
    told = zip(reasons, response.tallies, strict=True)
    stopped_by = [tally.stopped_by if reason == "stop" else None for reason, tally in told]
    sequence_number = response.hold.released + 1
    # What is shed has not told how it began. A rebuild, which tells that, says the same of its end.
    is_shed = code is EndingCode.OVERLOADED and opened.on_disconnect == "continue"
    echo = opened.echo if is_shed else ""
    terminal = _terminal(
        opened, code, ending, reasons, usage, sequence_number, ended_at_ms, model=opened.model, echo=echo,
        reached=Reached.STOPPED if _is_taken(response) else Reached.EVICTED,
        stopped_by=stopped_by if any(each is not None for each in stopped_by) else [],
    )  # fmt: skip
    yield Emit("responses", opened.response_id, terminal, response.reply_partition)
    yield from _bill(response, code, reasons, usage, ended_at_ms)
    if opened.reply_to.results_topic is not None:
        yield _result_of_response(opened, terminal, response.tallies)


def of_refusal(ending: Ending, ended_at_ms: int) -> Iterator[Effect]:
    """The ending of a response that was never admitted: its answer, and a bill over nothing."""
    code = ending.code
    reasons = [ENDINGS[code].finish_reason]
    usage = TokenUsage(prompt_tokens=ending.prompt_tokens)
    terminal = _terminal(
        ending, code, ending, reasons, usage, 1, ended_at_ms, model=ending.requested_model, echo=ending.echo,
        reached=Reached.REJECTED,
    )  # fmt: skip
    yield Emit("responses", ending.response_id, terminal, told_in(ending.reply_to))
    event = UsageEvent(
        response_id=ending.response_id,
        scope=ending.scope,
        stage_ms=ending.stage_ms | {"post-safety": ended_at_ms},
        usage_id=f"{ending.response_id}/0",
        choice=0,
        endpoint=ending.endpoint,
        model="",
        requested_model=ending.requested_model,
        pool="",
        lane="",
        worker_id="",
        attempts=0,
        ending=code,
        finish_reason=reasons[0],
        billable=False,
        accepted_at_ms=ending.accepted_at_ms,
        first_token_at_ms=0,
        ended_at_ms=ended_at_ms,
        uncached_input_tokens=0,
        cached_input_tokens=0,
        output_tokens=0,
        reasoning_tokens=0,
        released_tokens=0,
        reserved_tokens=0,
    )
    yield Emit("usage", ending.response_id, event)
    if ending.reply_to.results_topic is not None:
        # What admission finds in the body of a job it names as that does, and as a chat's whatever that asks.
        is_read_by_admission = ending.endpoint == "chat.completions" and not ending.reply_to.is_untold
        names = {} if is_read_by_admission else OF_ENDPOINTS.get(ending.endpoint, {})
        yield _result(ending, error=_error_of(terminal, names))


def _bill(
    response: Response, code: EndingCode, reasons: list[str], usage: TokenUsage, ended_at_ms: int
) -> Iterator[Effect]:
    """One event per choice; what belongs to the whole response stands on choice 0.

    Nothing is charged for a response that no worker took, or none where it was moved to, however it ended.
    """
    opened = response.served
    of_vectors = is_of_vectors(opened)
    taken = _is_taken(response)
    for choice, tally in enumerate(response.tallies):
        first = choice == 0
        event = UsageEvent(
            response_id=opened.response_id,
            scope=opened.scope,
            stage_ms=_stage_ms(response, tally, ended_at_ms),
            usage_id=f"{opened.response_id}/{choice}",
            choice=choice,
            endpoint=opened.endpoint,
            model=opened.model,
            requested_model=opened.requested_model,
            pool=opened.pool,
            lane=opened.lane.value,
            worker_id="" if tally.newest is None else tally.newest[0],
            attempts=response.prefix.attempts,
            ending=code,
            finish_reason=reasons[choice],
            billable=taken and ENDINGS[code].billed,
            accepted_at_ms=opened.accepted_at_ms,
            first_token_at_ms=tally.first_token_at_ms,
            ended_at_ms=ended_at_ms,
            uncached_input_tokens=usage.prompt_tokens - usage.cached_tokens if first and taken else 0,
            cached_input_tokens=usage.cached_tokens if first else 0,
            output_tokens=0 if of_vectors else tally.output,
            reasoning_tokens=tally.reasoning,
            released_tokens=0 if of_vectors else tally.output + tally.reasoning - tally.withheld,
            reserved_tokens=opened.reserved_tokens if first else 0,
        )
        yield Emit("usage", opened.response_id, event)


def _is_taken(response: Response) -> bool:
    """Whether a worker has begun it, where it was last."""
    return response.prefix.attempt_id is not None


def _finish_reason(response: Response, choice: int, code: EndingCode) -> str:
    """A choice that finished keeps its own reason if it was released to its end. One that stopped because it waits for
    what its calls return says so.
    """
    tally, own = response.tallies[choice], response.prefix.finished.get(choice)
    # Of a choice that nobody looked into, for want of its phrases, nothing was.
    if own is None or tally.withheld or (response.hold.halted and response.hold.halted_choice is None):
        return ENDINGS[code].finish_reason
    return "tool_calls" if own == "stop" and tally.called else own


def _stage_ms(response: Response, tally: Tally, ended_at_ms: int) -> dict[str, int]:
    """When each stage finished with the choice; a stage that it did not reach is left out.

    Differences between neighbours: in the lane (`routing` to `worker`), to the first token (to `prefill`), to the last
    accepted token (to `decode`), and from there until it had all been released or ended (to `post-safety`).
    """
    stage_ms = dict(response.served.stage_ms)
    if response.worker_began_at_ms is not None:
        stage_ms["worker"] = response.worker_began_at_ms
    if tally.newest is not None:
        stage_ms["prefill"] = tally.first_emitted_at_us // 1_000
        stage_ms["decode"] = tally.newest[1] // 1_000
    stage_ms["post-safety"] = ended_at_ms
    return stage_ms


def _token_usage(response: Response) -> TokenUsage:
    reasoning = sum(tally.reasoning for tally in response.tallies)
    output = 0 if is_of_vectors(response.served) else sum(tally.output for tally in response.tallies)
    return TokenUsage(
        prompt_tokens=response.served.prompt_tokens,
        cached_tokens=response.cached_tokens,
        completion_tokens=reasoning + output,
        reasoning_tokens=reasoning,
    )


def _terminal(
    about: Opened | Ending,
    code: EndingCode,
    ending: Ending | None,
    finish_reasons: list[str],
    usage: TokenUsage,
    sequence_number: int,
    ended_at_ms: int,
    *,
    model: str,
    echo: str,
    reached: Reached,
    stopped_by: list[StoppedBy] | None = None,
) -> Terminal:
    return Terminal(
        response_id=about.response_id,
        scope=about.scope,
        sequence_number=sequence_number,
        code=code,
        finish_reasons=finish_reasons,
        stopped_by=stopped_by or [],
        message=(ending.message if ending is not None else "") or ENDINGS[code].message,
        param=ending.param if ending is not None else None,
        retry_after_ms=_retry_after_ms(about.response_id, code, ending),
        reached=reached if ENDINGS[code].is_error else None,
        limits=ending.limits if ending is not None else {},
        brownout=about.brownout if isinstance(about, Opened) else None,
        usage=usage,
        model=model,
        fallback=about.fallback if isinstance(about, Opened) else None,
        ended_at_ms=ended_at_ms,
        echo=echo,
    )


def _retry_after_ms(response_id: str, code: EndingCode, ending: Ending | None) -> int | None:
    """The advice of who wrote the ending; else, where trying again may help, one that spreads the responses."""
    if ending is not None and ending.retry_after_ms is not None:
        return ending.retry_after_ms
    return _RETRY_MS + stable_partition(response_id, _RETRY_JITTER_MS) if ENDINGS[code].retryable else None


def _result_of_response(opened: Opened, terminal: Terminal, tallies: list[Tally]) -> Emit:
    """What a batch producer reads, or the gateway that runs a batch: the whole answer, or the error."""
    if ENDINGS[terminal.code].is_error or not is_answer(opened, terminal.code):
        return _result(opened, error=_error_of(terminal, OF_ENDPOINTS.get(opened.endpoint, {})))
    body = body_of(opened, terminal, tallies)
    are_numbers = is_of_vectors(opened) and format_in(opened.echo) == "float"
    # A gateway writes the numbers of its lines itself, as many as they are.
    if are_numbers and not opened.reply_to.is_untold and (as_numbers := with_numbers_if_few(body)) is not None:
        body, are_numbers = as_numbers, False
    response = BatchResponse(status_code=200, request_id=opened.response_id, body=body)
    return _result(opened, response=response, vectors_as="float" if are_numbers else None)


def _error_of(terminal: Terminal, names: Names) -> BatchError:
    message, param = in_words_of(names, terminal.message, terminal.param)
    return BatchError(
        code=terminal.code.value, message=message, param=param, retry_after_ms=terminal.retry_after_ms,
        reason=terminal.reason,
    )  # fmt: skip


def _result(
    about: Opened | Ending, *, response: BatchResponse | None = None, error: BatchError | None = None,
    vectors_as: Literal["float"] | None = None,
) -> Emit:  # fmt: skip
    custom_id = about.reply_to.custom_id or about.response_id
    result = BatchResult(
        scope=about.scope, id=about.response_id, custom_id=custom_id, response=response, error=error,
        vectors_as=vectors_as,
    )  # fmt: skip
    return Emit("results", custom_id, result, topic=about.reply_to.results_topic)


def told_in(reply_to: ReplyTo) -> int:
    """The partition of `responses` in which it is told."""
    return NOWHERE if reply_to.is_untold else reply_to.partition
