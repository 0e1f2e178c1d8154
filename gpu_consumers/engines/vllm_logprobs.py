"""From vLLM's probabilities to those of rows: what each token is, as bytes, and how likely."""

import json
import re
from dataclasses import replace
from typing import Any, Final

from gpu_consumers.engines.port import EngineDelta
from schemas.logprobs import MAX_TOKEN_BYTES, MIN_LOGPROB, TokenLogprobs

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
"""How tokenizers spell a byte that have tokens of text otherwise."""


def _alphabet() -> dict[str, int]:
    """How tokenizers of bytes write each of them: those that can be seen as they are, the others from U+0100 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF: Final = _alphabet()


class TokenTexts(dict[int, str]):
    """The bytes of each token of a tokenizer of `transformers`, as Latin-1 text; of a special token its name's. Tokens
    that a model has beyond its tokenizer are empty.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._added = {token_id: added.content for token_id, added in tokenizer.added_tokens_decoder.items()}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = None if backend is None else backend.decoder
        self._is_of_bytes = decoder is not None and "ByteLevel" in _types(json.loads(decoder.__getstate__()))

    def __missing__(self, token_id: int) -> str:
        text = self[token_id] = self._bytes_of(token_id)[:MAX_TOKEN_BYTES].decode("latin-1")
        return text

    def _bytes_of(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        token = self._tokenizer.convert_ids_to_tokens(token_id) if added is None else added
        if not isinstance(token, str):
            return b""
        if added is None and self._is_of_bytes and all(char in _BYTE_OF for char in token):
            return bytes(_BYTE_OF[char] for char in token)
        if added is None and (byte := _FALLBACK.fullmatch(token)) is not None:
            return bytes.fromhex(byte[1])
        return (token if added is not None else token.replace("▁", " ")).encode()


def _types(decoder: Any) -> set[str]:
    return {decoder["type"], *(kind for each in decoder.get("decoders", ()) for kind in _types(each))}


def told(logprobs: Any, texts: TokenTexts) -> list[TokenLogprobs]:
    """Per token, of vLLM's `FlatLogprobs`: it has the chosen token first as well, then the likeliest."""
    alternatives = [
        (texts[token_id], min(value, 0.0) if value > MIN_LOGPROB else MIN_LOGPROB)  # not a number: neither
        for token_id, value in zip(logprobs.token_ids, logprobs.logprobs, strict=True)
    ]
    return [alternatives[begin:end] for begin, end in zip(logprobs.start_indices, logprobs.end_indices, strict=True)]


def with_logprobs(delta: EngineDelta, logprobs: list[TokenLogprobs], *, hides_last: bool) -> list[EngineDelta]:
    """`hides_last`: its last token ends the answer and is not shown. It has none then, in a row of its own, and carries
    the text as before.
    """
    if not hides_last or not delta.token_ids:
        delta.logprobs = logprobs
        return [delta]
    *token_ids, last = delta.token_ids
    shown = replace(delta, token_ids=token_ids, text="", text_ends=[0] * len(token_ids), finish="")
    shown.logprobs = logprobs[:-1]
    delta.token_ids, delta.text_ends = [last], [len(delta.text)]
    return [shown, delta] if token_ids else [delta]
