"""vLLM's probabilities as rows have them, and the bytes of a tokenizer's tokens."""

from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from gpu_consumers.engines.port import EngineDelta
from gpu_consumers.engines.vllm_logprobs import TokenTexts, told, with_logprobs
from schemas.logprobs import MAX_TOKEN_BYTES, MIN_LOGPROB

MODEL = Path(__file__).parents[4] / "models" / "sluice-tiny"


def as_transformers_has(tokenizer: Tokenizer) -> Any:
    return SimpleNamespace(
        added_tokens_decoder=tokenizer.get_added_tokens_decoder(),
        convert_ids_to_tokens=tokenizer.id_to_token,
        backend_tokenizer=tokenizer,
    )


TINY = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
TEXTS = TokenTexts(as_transformers_has(TINY))


@given(st.text())
def test_the_bytes_of_the_tokens_of_a_text_are_its_own(text: str) -> None:
    ids = TINY.encode(text, add_special_tokens=False).ids
    assert b"".join(TEXTS[token_id].encode("latin-1") for token_id in ids) == text.encode()


def test_a_special_token_is_its_name_and_one_beyond_the_tokenizer_is_nothing() -> None:
    assert TEXTS[4] == "<|end|>"
    assert TEXTS[10**9] == ""


def test_tokens_of_text_have_bytes_beside_them_where_they_need_them() -> None:
    vocabulary = {"▁café": 0, "<0xF0>": 1, "<s>": 2, "x" * 2_000: 3}
    tokenizer = Tokenizer(BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<s>"])
    texts = TokenTexts(as_transformers_has(tokenizer))
    assert [texts[each] for each in range(3)] == [" café".encode().decode("latin-1"), "\xf0", "<s>"]
    assert len(texts[3]) == MAX_TOKEN_BYTES


def flat(*tokens: list[tuple[int, float]]) -> SimpleNamespace:
    """As vLLM's `FlatLogprobs`."""
    ends = [sum(map(len, tokens[: index + 1])) for index in range(len(tokens))]
    return SimpleNamespace(
        token_ids=[token_id for each in tokens for token_id, _ in each],
        logprobs=[value for each in tokens for _, value in each],
        start_indices=[0, *ends[:-1]],
        end_indices=ends,
    )


def test_what_no_logarithm_can_be_in_json_is_the_least() -> None:
    [[*likely], [certain]] = told(flat([(4, -inf), (4, nan), (4, -0.5)], [(4, 1e-7)]), TEXTS)
    assert likely == [("<|end|>", MIN_LOGPROB), ("<|end|>", MIN_LOGPROB), ("<|end|>", -0.5)]
    assert certain == ("<|end|>", 0.0)


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_token_that_ends_an_answer_and_is_not_shown_has_none(tokens: int) -> None:
    def delta() -> EngineDelta:
        return EngineDelta("r", 1, list(range(tokens)), "text", [0] * (tokens - 1) + [4], "stop", 5)

    logprobs = told(flat(*[[(4, -1.0)]] * tokens), TEXTS)
    [shown] = with_logprobs(delta(), logprobs, hides_last=False)
    assert shown.logprobs == logprobs
    *said, end = with_logprobs(delta(), logprobs, hides_last=True)
    assert (end.token_ids, end.text, end.text_ends) == ([tokens - 1], "text", [4])
    assert (end.finish, end.logprobs) == ("stop", None)
    assert [(row.token_ids, row.text_ends, row.finish, row.logprobs) for row in said] == (
        [] if tokens == 1 else [([0, 1], [0, 0], "", logprobs[:2])]
    )
