"""Tokens and pieces become rows: nothing twice, nothing lost."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.parsing.port import Piece
from gpu_consumers.parsing.rows import MAX_WITHOUT_TEXT, Row, RowCutter
from schemas.columns import can_be_cut
from tests.unit.gpu_consumers.parsing.answers import merged, told

PIECES = st.lists(
    st.builds(
        Piece,
        st.sampled_from(["content", "reasoning", "tool_name", "tool_arguments"]),
        st.integers(0, 1),
        st.text("xy", max_size=2),
    ),
    max_size=3,
)


def rows_of(pieces_of_tokens: list[list[Piece]]) -> list[Row]:
    cutter = RowCutter()
    rows: list[Row] = []
    for token_id, pieces in enumerate(pieces_of_tokens):
        rows += cutter.take(token_id, pieces)
    cutter.end(rows, "stop")
    return rows


@given(st.lists(PIECES, min_size=1, max_size=12))
def test_every_token_is_in_one_row_and_every_row_can_be_cut(pieces_of_tokens: list[list[Piece]]) -> None:
    rows = rows_of(pieces_of_tokens)
    assert [token for row in rows for token in row.token_ids] == list(range(len(pieces_of_tokens)))
    assert all(can_be_cut(row.text, row.text_ends) and len(row.token_ids) == len(row.text_ends) for row in rows)
    assert [row.finish for row in rows] == [""] * (len(rows) - 1) + ["stop"]


@given(st.lists(PIECES, max_size=12))
def test_the_text_of_every_kind_and_call_is_what_the_parser_gave(pieces_of_tokens: list[list[Piece]]) -> None:
    given_pieces = merged(piece for pieces in pieces_of_tokens for piece in pieces)
    silence: list[list[Piece]] = [[] for _ in given_pieces]
    assert told(rows_of([*pieces_of_tokens, *silence, []])) == given_pieces


@given(st.lists(PIECES, min_size=1, max_size=12))
def test_an_answer_that_is_cut_off_lacks_at_most_what_its_tokens_have_no_room_for(
    pieces_of_tokens: list[list[Piece]],
) -> None:
    given_pieces = merged(piece for pieces in pieces_of_tokens for piece in pieces)
    shown = told(rows_of(pieces_of_tokens))
    assert shown == given_pieces[: len(shown)]
    if len(shown) < len(given_pieces):
        assert len(shown) >= 1  # the last token's first piece has it, at least


def test_tokens_without_text_leave_room_for_the_pieces_behind_them() -> None:
    rows = rows_of([[], [], [Piece("tool_name", 0, "f"), Piece("tool_arguments", 0, "{")]])
    assert [(row.kind, row.token_ids, row.text, row.text_ends) for row in rows] == [
        ("tool_name", [0, 1], "f", [0, 1]),
        ("tool_arguments", [2], "{", [1]),
    ]


def test_a_piece_without_a_token_waits_for_the_next_one_and_what_it_adds_joins_it() -> None:
    name, begin = Piece("tool_name", 0, "f"), Piece("tool_arguments", 0, "{")
    rows = rows_of([[name, begin], [Piece("tool_arguments", 0, "}")]])
    assert [(row.kind, row.token_ids, row.text) for row in rows] == [
        ("tool_name", [0], "f"),
        ("tool_arguments", [1], "{}"),
    ]


def test_tokens_do_not_wait_for_text_for_ever() -> None:
    cutter = RowCutter()
    cutter.take(0, [Piece("reasoning", 0, "Hm")])
    rows = [row for token in range(MAX_WITHOUT_TEXT + 1) for row in cutter.take(1 + token, [])]
    assert [(row.kind, len(row.token_ids), row.text) for row in rows] == [("reasoning", MAX_WITHOUT_TEXT + 1, "")]
