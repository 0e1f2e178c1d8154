import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from schemas.request import Message, TextPart
from streams.chat_tokenizer import _BETWEEN_WORDS, ChatTokenizer, TooManyTokens

MODEL = Path(__file__).parents[3] / "models" / "sluice-tiny"
TOKENIZER = ChatTokenizer(MODEL)
SPECIALS = {
    text: TOKENIZER._encode_template(text)[0] for text in ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
}


def _user(*texts: str) -> Message:
    return Message(role="user", content=[TextPart(text=text) for text in texts])


def test_one_question_becomes_one_turn_and_the_call_for_the_next() -> None:
    token_ids = TOKENIZER.encode_chat([_user("What is the capital of France?")])
    assert token_ids[0] == SPECIALS["<|user|>"]
    assert token_ids[-2:] == [SPECIALS["<|end|>"], SPECIALS["<|assistant|>"]]
    assert TOKENIZER.decode(token_ids) == "What is the capital of France?"


@given(st.lists(st.text(max_size=50), min_size=1, max_size=4), st.sampled_from(sorted(SPECIALS)))
def test_no_text_can_forge_a_turn(texts: list[str], marker: str) -> None:
    token_ids = TOKENIZER.encode_chat([_user(*texts, marker, *texts)])
    assert [token for token in token_ids if token in SPECIALS.values()] == [
        SPECIALS["<|user|>"], SPECIALS["<|end|>"], SPECIALS["<|assistant|>"]
    ]  # fmt: skip


@given(st.text(max_size=200))
def test_text_survives(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode_text(text)) == text


def test_the_placeholders_of_the_template_mean_nothing_in_a_message() -> None:
    forged = "\ue0000\ue001"
    assert TOKENIZER.decode(TOKENIZER.encode_chat([_user(forged), _user("b")])) == forged + "b"


@pytest.mark.parametrize("turns", [1, 2, 50])
def test_chats_of_the_same_roles_have_the_same_frame_and_their_own_words(turns: int) -> None:
    chats = [[_user(f"{word} {turn}") for turn in range(turns)] for word in ("one", "two", "one")]
    first, second, again = [TOKENIZER.encode_chat(chat) for chat in chats]
    assert TOKENIZER.decode(first) == "".join(f"one {turn}" for turn in range(turns))
    assert TOKENIZER.decode(second) == "".join(f"two {turn}" for turn in range(turns))
    assert first == again
    assert [t for t in first if t in SPECIALS.values()] == [t for t in second if t in SPECIALS.values()]


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        ChatTokenizer(tmp_path)


def test_a_long_text_does_not_keep_other_threads_from_running() -> None:
    encoding = threading.Thread(target=TOKENIZER.encode_chat, args=([_user("𒀀" * 300_000)],))
    encoding.start()
    turns = 0
    while encoding.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 10


def test_the_vocabulary_ends_behind_its_largest_token() -> None:
    size = TOKENIZER.vocabulary_size
    assert max(TOKENIZER.encode_chat([_user("What is the capital of France?")])) < size
    assert size == json.loads((MODEL / "config.json").read_text())["vocab_size"]


@given(st.lists(st.text(max_size=12), max_size=60), st.integers(0, 200))
def test_what_stands_before_a_word_is_tokenised_alike_alone(words: list[str], position: int) -> None:
    assert TOKENIZER._divides_words
    text = " ".join(["first", *words, "last one"])
    boundary = _BETWEEN_WORDS.search(text, position)
    if boundary is not None:
        beginning = TOKENIZER.encode_text(text[: boundary.end()])
        assert TOKENIZER.encode_text(text)[: len(beginning)] == beginning


@pytest.mark.parametrize("messages", [1, 3, 1_000])
def test_of_a_prompt_that_is_far_too_long_only_the_beginning_is_tokenised(
    messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "the quick brown fox jumps over it. " * (25_000 // messages)
    encoded = chars_encoded(monkeypatch)
    with pytest.raises(TooManyTokens):
        TOKENIZER.encode_chat([_user(text)] * messages, at_most=1_000)
    assert sum(encoded) < 20_000


def chars_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each text that is tokenised from now on."""
    chars = []
    encode_text = ChatTokenizer.encode_text

    def counted(self: ChatTokenizer, text: str, *, framed: bool = False) -> list[int]:
        chars.append(len(text))
        return encode_text(self, text, framed=framed)

    monkeypatch.setattr(ChatTokenizer, "encode_text", counted)
    return chars


@given(st.lists(st.sampled_from(["a ", "word ", "digits 0123 ", "\n", "ü", "xyz"]), max_size=200), st.integers(0, 300))
def test_a_bound_changes_no_prompt_that_keeps_it(words: list[str], at_most: int) -> None:
    chat = [_user("".join(words) * 20), _user("and", " more")]
    whole = TOKENIZER.encode_chat(chat)
    try:
        assert TOKENIZER.encode_chat(chat, at_most=at_most) == whole
    except TooManyTokens:
        assert len(whole) > at_most


@given(st.lists(st.text(max_size=50), min_size=1, max_size=4), st.sampled_from(sorted(SPECIALS)))
def test_no_raw_prompt_can_write_a_special_token(texts: list[str], marker: str) -> None:
    text = marker.join([*texts, ""])
    token_ids = TOKENIZER.encode_prompt(text, at_most=10_000)
    assert not {*token_ids} & {*SPECIALS.values()}
    assert TOKENIZER.decode(token_ids) == text
    assert token_ids == TOKENIZER.encode_text(text, framed=True)


def test_of_a_raw_prompt_that_is_far_too_long_only_the_beginning_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = chars_encoded(monkeypatch)
    with pytest.raises(TooManyTokens):
        TOKENIZER.encode_prompt("the quick brown fox jumps over it. " * 25_000, at_most=1_000)
    assert sum(encoded) < 20_000


def test_a_raw_prompt_is_framed_as_the_tokenizer_frames_a_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    begins = ("<|system|>", SPECIALS["<|system|>"])
    tokenizer.post_processor = TemplateProcessing(single="<|system|> $A", special_tokens=[begins])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text((MODEL / "chat_template.jinja").read_text())
    first, *rest = ChatTokenizer(tmp_path).encode_prompt("Once <|system|>", at_most=1_000)
    assert first == SPECIALS["<|system|>"]
    assert rest == TOKENIZER.encode_text("Once <|system|>")
