"""One response on a socket: its deltas as frames, and how it ends."""

from collections.abc import Callable

from orjson import dumps

from schemas.endings import ENDINGS
from schemas.responses import Started, Terminal
from schemas.websocket import ErrorBody, QueuedMessage, StartedMessage, TerminalMessage, UsageBody
from streams.dialects.names import OF_CHATS
from streams.dialects.openai_completion import finish_reason, usage_object
from streams.dialects.openai_error import terminal_error
from streams.dialects.openai_logprobs import token_objects
from streams.dialects.tool_calls import call_id
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.spans import Span
from streams.gateway.queues import Queues, Waiter
from streams.gateway.service.refusals import retry_advice_of
from streams.gateway.timing import Timing
from streams.gateway.websocket.protocol import text_frame
from streams.queue_place import QueuePlace

_KINDS = {"content": b'"content"', "reasoning": b'"reasoning"', "embedding": b'"embedding"'}


def terminal_message(response_id: str, terminal: Terminal) -> TerminalMessage:
    """The last event of a response; retryable endings always carry jittered advice."""
    rule = ENDINGS[terminal.code]
    error = terminal_error(terminal, OF_CHATS)["error"] if rule.is_error else None
    return TerminalMessage(
        response_id=response_id,
        sequence_number=terminal.sequence_number,
        code=terminal.code.value,
        finish_reason=finish_reason(terminal.code, terminal.finish_reasons),
        finish_reasons=terminal.finish_reasons,
        usage=UsageBody(**usage_object(terminal.usage)),
        model=terminal.model,
        fallback=terminal.fallback,
        error=None if error is None else ErrorBody(**error),
        retry_after_ms=retry_advice_of(terminal),
        limits=terminal.limits,
        brownout=terminal.brownout,
    )


def started_message(response_id: str, started: Started) -> StartedMessage:
    return StartedMessage(
        response_id=response_id, model=started.model, requested_model=started.requested_model,
        prompt_tokens=started.prompt_tokens, accepted_at_ms=started.accepted_at_ms, deadline_ms=started.deadline_ms,
        brownout=started.brownout,
        fallback=started.fallback,
        lowered_from=started.lowered_from,
    )  # fmt: skip


class Watched:
    """One response on a socket."""

    __slots__ = ("accepted_at_ms", "delta_head", "follower", "queued", "request_id", "response_id", "timing", "waiter")

    def __init__(self, response_id: str, follower: Follower, request_id: str | None, timing: Timing) -> None:
        self.response_id = response_id
        self.follower = follower
        self.request_id = request_id
        self.timing = timing
        self.queued = False
        self.waiter: Waiter | None = None
        """While others are before it."""
        self.accepted_at_ms = follower.started.accepted_at_ms if follower.started else 0
        self.delta_head = b'{"type":"delta","response_id":"%b","first_sequence":' % response_id.encode()

    def wait(self, queues: Queues, started: Started, say: Callable[[QueuedMessage], None]) -> None:
        """Says where it stands, now and as that changes, until it is unwatched or has come to its turn."""

        def tell(place: QueuePlace) -> None:
            say(QueuedMessage(response_id=self.response_id, before=place.before, wait_ms=place.wait_ms))

        queues.leave(self.waiter)
        self.waiter = queues.enter(started, self.follower, tell)
        if self.waiter is not None and self.waiter.place is not None:
            tell(self.waiter.place)

    def delta(self, span: Span) -> bytes:
        first, last, choice, kind, text, _, emitted_at_us, _, logprobs = span
        told = b'%b%d,"sequence_number":%d,"choice":%d,"kind":%b,"emitted_at_us":%d,"text":%b}' % (
            self.delta_head, first, last, choice, _KINDS.get(kind) or self._of_call(span), emitted_at_us, dumps(text),
        )  # fmt: skip
        if logprobs is None:
            return told
        return b'%b,"logprobs":%b}' % (told[:-1], dumps(token_objects(logprobs)))

    def _of_call(self, span: Span) -> bytes:
        """The kind, and what only tools have."""
        if span.kind == "tool_name":
            own_id = call_id(self.response_id, span.choice, span.call)
            return b'"tool_name","call":%d,"call_id":"%b"' % (span.call, own_id.encode())
        return b'"tool_arguments","call":%d' % span.call

    def frame(self, span: Span) -> bytes:
        """The delta as a frame, made once for all who watch the response on sockets."""
        viewer = self.follower.viewer
        if viewer is None or len(viewer.stream.viewers) == 1:
            return text_frame(self.delta(span))
        stream = viewer.stream
        if stream.encoded is None or stream.encoded[0] is not span:
            stream.encoded = (span, text_frame(self.delta(span)))
        return stream.encoded[1]
