"""How likely tokens were, in the forms of OpenAI's formats. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas.logprobs import Alternative, RowLogprobs, TokenLogprobs


def written(token: str) -> str:
    """A token as text. Bytes that are no text by themselves, a part of a character, stand as OpenAI writes them."""
    raw = token.encode("latin-1")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def token_objects(logprobs: Iterable[TokenLogprobs]) -> list[dict[str, Any]]:
    """One object per token, as chats and sockets have them."""
    return [{**_told(own), "top_logprobs": [_told(each) for each in likeliest]} for own, *likeliest in logprobs]


def chat_logprobs(logprobs: RowLogprobs) -> dict[str, Any] | None:
    """Of a choice of a chat, or of a chunk of it; None where nobody asked."""
    return None if logprobs is None else {"content": token_objects(logprobs), "refusal": None}


def text_logprobs(logprobs: RowLogprobs, text_ends: Sequence[int], offset: int = 0) -> dict[str, Any] | None:
    """Of a choice of a legacy completion, or of a chunk that has `offset` characters of it before it. The token that
    was chosen stands behind the likeliest, if it is none of them.
    """
    if logprobs is None:
        return None
    return {
        "tokens": [written(each[0][0]) for each in logprobs],
        "token_logprobs": [each[0][1] for each in logprobs],
        "top_logprobs": [_by_text(each) for each in logprobs],
        "text_offset": [offset + begin for begin in (0, *text_ends[:-1])],
    }


def joined(each: Iterable[Mapping[str, list[Any]] | None]) -> dict[str, Any] | None:
    """The `text_logprobs` of consecutive parts of a choice, as those of all of it; None where nobody asked."""
    whole: dict[str, list[Any]] = {}
    for told in each:
        for name, values in (told or {}).items():
            whole.setdefault(name, []).extend(values)
    return whole or None


def _by_text(logprobs: TokenLogprobs) -> dict[str, float]:
    """Of tokens that look alike the likeliest."""
    own, *likeliest = logprobs
    found: dict[str, float] = {}
    for token, logprob in (*likeliest, own):
        found.setdefault(written(token), logprob)
    return found


def _told(alternative: Alternative) -> dict[str, Any]:
    token, logprob = alternative
    return {"token": written(token), "logprob": logprob, "bytes": list(token.encode("latin-1"))}
