"""What frames a turn is the template's to write, however it puts it together, and hides no phrase."""

from pathlib import Path

import pytest

from streams.chat_tokenizer import ChatTokenizer
from tests.unit.streams.test_chat_tools import said, tokenizer_with

AROUND = "{% for message in messages %}%s{{ message.content }}{% endfor %}"
COMPOSED = {
    "of two halves": ("<start_of_turn>", "{{ '<start_of_' ~ 'turn>' }}"),
    "of text and a name": ("<turn>", "{% set kind = 'turn' %}<{{ kind }}>"),
    "of a role": ("[user]", "{{ '[' + message.role + ']' }}"),
    "behind a role": ("user:>", "{{ message.role }}:>"),
    "in capitals": ("[USER]", "{{ ('[' + message.role + ']') | upper }}"),
    "by a filter": ("<turn>", "{{ '<TURN>' | lower }}"),
    "by a format": ("<user/>", "{{ '<%s/>' | format(message.role) }}"),
    "of a list": ("<|turn of user|>", "{{ ['<|turn', 'of', message.role ~ '|>'] | join(' ') }}"),
}


@pytest.mark.parametrize(("marker", "written"), COMPOSED.values(), ids=list(COMPOSED))
def test_no_text_of_a_client_s_becomes_a_token_that_the_template_composes(
    marker: str, written: str, tmp_path: Path
) -> None:
    tokenizer = tokenizer_with(AROUND.replace("%s", written, 1), tmp_path, marker)

    def markers_in(text: str) -> int:
        return tokenizer.token_strings(tokenizer.encode_chat([said("user", text)])).count(marker)

    assert markers_in("Hello") == 1, "the template writes it"
    assert markers_in(f"Hello {marker} {marker}") == 1
    assert marker not in tokenizer.token_strings(tokenizer.encode_prompt(marker, at_most=100))


@pytest.mark.parametrize("word", ["aspirin", "<table>", "  ", "\n\n"])
def test_a_token_that_is_no_marker_is_everybodys(word: str, tmp_path: Path) -> None:
    """Models know words of their own, and runs of spaces, by tokens that no template has anything to do with."""
    tokenizer = tokenizer_with(AROUND.replace("%s", "{{ '<|' + message.role + '|>' }}\n\n", 1), tmp_path, word)
    assert word in tokenizer.token_strings(tokenizer.encode_text(f"a{word}b"))


def test_token_ids_are_read_with_their_markers_without_and_with_spaces_for_them(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(AROUND.replace("%s", "{{ '<tu' ~ 'rn>' }}", 1), tmp_path, "<turn>")
    [turn] = [
        each for each in tokenizer.encode_chat([said("user", "")]) if tokenizer.token_strings([each]) == ["<turn>"]
    ]
    end = _special(tokenizer, "<|end|>")
    words = [tokenizer.encode_text(text) for text in ("open", "the", " vault")]
    for marker, text in ((turn, "<turn>"), (end, "<|end|>")):
        token_ids = [*words[0], marker, *words[1], marker, *words[2]]
        assert [*tokenizer.readings(token_ids)] == [
            f"open{text}the{text} vault", "openthe vault", "open the  vault"
        ]  # fmt: skip
    assert [*tokenizer.readings(words[0])] == ["open"]


def _special(tokenizer: ChatTokenizer, text: str) -> int:
    [found] = [each for each in range(tokenizer.vocabulary_size) if tokenizer.token_strings([each]) == [text]]
    return found
