"""What the clients of each dialect call the fields that admission and workers refuse by the names of a `Request`."""

import re
from collections.abc import Mapping
from typing import Final

Names = Mapping[str, str]
"""By a request's own, where they differ."""

OF_CHATS: Final[Names] = {"logprobs": "top_logprobs", "structured_outputs": "response_format"}
OF_COMPLETIONS: Final[Names] = {"structured_outputs": "response_format"}
OF_RESPONSES: Final[Names] = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "logprobs": "top_logprobs",
    "structured_outputs": "text.format",
}
OF_MESSAGES: Final[Names] = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "structured_outputs": "output_config.format",
}
OF_ENDPOINTS: Final[Mapping[str, Names]] = {
    "chat.completions": OF_CHATS,
    "completions": OF_COMPLETIONS,
    "responses": OF_RESPONSES,
    "messages": OF_MESSAGES,
}
"""By the dialect that a request was made in. Of one that is not there nothing is called otherwise."""


def in_words_of(names: Names, message: str, param: str | None) -> tuple[str, str | None]:
    """A refusal's message, where it names the field, and the field."""
    if param is None or (own := names.get(param)) is None:
        return message, param
    return re.sub(rf"\b{re.escape(param)}\b", own, message, count=1), own
