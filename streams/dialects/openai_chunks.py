"""What the chunks of chats and of completions have in common."""

from typing import ClassVar

from schemas.responses import TokenUsage
from streams.dialects.event_json import event_json
from streams.dialects.openai_completion import usage_object


class Chunks:
    """Encodes one response's chunks as JSON; constant parts are encoded once.

    Each holds the number of the last token in it (`sequence_number`, an extension): where to resume. With
    `prompt_tokens` each also says what was used so far.
    """

    kind: ClassVar[str]
    """Its `object`."""

    def __init__(
        self, response_id: str, created_s: int, model: str, *, include_usage: bool, prompt_tokens: int | None = None
    ) -> None:
        head = {"id": response_id, "object": self.kind, "created": created_s, "model": model}
        self._head = event_json(head)[:-1]
        self._prompt_tokens = prompt_tokens
        self._tail = b',"usage":null,"sequence_number":' if include_usage else b',"sequence_number":'
        self._text_before = self._head + b',"choices":[{"index":'

    def _end(self, sequence_number: int) -> bytes:
        if self._prompt_tokens is None:
            return b"%b%d}" % (self._tail, sequence_number)
        so_far = usage_object(TokenUsage(prompt_tokens=self._prompt_tokens, completion_tokens=sequence_number))
        return b',"usage":%b,"sequence_number":%d}' % (event_json(so_far), sequence_number)

    def finish(self, reason: str, sequence_number: int, choice: int = 0) -> bytes:
        raise NotImplementedError

    def usage(self, usage: TokenUsage, sequence_number: int) -> bytes:
        """The last chunk, when the client asked for usage."""
        return b'%b,"choices":[],"usage":%b,"sequence_number":%d}' % (
            self._head, event_json(usage_object(usage)), sequence_number,
        )  # fmt: skip
