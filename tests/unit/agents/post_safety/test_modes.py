"""How much is seen before it was looked at: in every mode the same answers are halted, for the same."""

from itertools import count, groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.post_safety.core import PostSafety
from agents.post_safety.effects import Emit
from agents.post_safety.hold_back import Delta, HoldBack
from agents.post_safety.modes import RUN_TOKENS, Held, Reviewing, Watching, looking
from agents.post_safety.parking import Restart
from agents.post_safety.policies import Rules
from agents.post_safety.strands import LaterCall, Strand
from agents.safety.phrases import PhraseSet
from schemas.base import Record
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, Frame, Opened
from schemas.policy import OutputMode
from streams.settings import PostSafetySettings
from tests.unit.agents.post_safety.story import START_MS, Member, Row, World, fence, frame, opened

PHRASES = PhraseSet(["make a bomb", "poison", "毒药"])
WORDS = ("make", " a", " bomb", "poi", "son", " ", "é", "", "\\", '"', "astic", " safe", ",", "毒", "药", "m", "ake")
STRANDS: tuple[Strand, ...] = ("content", "reasoning", "tool_name", "tool_arguments", LaterCall("tool_arguments", 1))
tokens_of_choices = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(STRANDS), st.sampled_from(WORDS)), min_size=1, max_size=40
)


def rows_of(tokens: list[tuple[int, Strand, str]], cuts: set[int]) -> list[Delta]:
    """Runs of one choice and strand, cut there too."""
    marked = [
        (choice, strand, sum(cut <= at for cut in cuts), token) for at, (choice, strand, token) in enumerate(tokens)
    ]
    rows, first = [], 1
    for (choice, strand, _), run in groupby(marked, lambda each: each[:3]):
        texts = [token for *_, token in run]
        ends = [sum(map(len, texts[: count + 1])) for count in range(len(texts))]
        rows.append(Delta(choice, strand, first, "".join(texts), ends, 1))
        first += len(texts)
    return rows


def tokens_in(deltas: list[Delta]) -> list[tuple[int, int, Strand, str]]:
    """Each with its number."""
    each = [piece for delta in deltas for piece in delta.apart()]
    return [(piece.first_sequence, piece.choice, piece.strand, piece.text) for piece in each]


def shown(hold: HoldBack, rows: list[Delta]) -> list[Delta]:
    """As post-safety asks: what may pass passes."""
    released = []
    for row in rows:
        is_whole = hold.passes(row.choice, row.strand, row.text, row.text_ends)
        released += [row] if is_whole else hold.accept(row)
    return released + hold.finish()


@given(tokens=tokens_of_choices, cuts=st.sets(st.integers(1, 40)), is_json=st.booleans())
def test_all_modes_halt_the_same_answers_and_none_shows_less_than_a_stricter_one(
    tokens: list[tuple[int, Strand, str]], cuts: set[int], is_json: bool
) -> None:
    rows = rows_of(tokens, cuts)
    holds = [mode(PHRASES, content_is_json=is_json) for mode in (Watching, HoldBack, Reviewing)]
    parallel, held_back, reviewed = (tokens_in(shown(hold, rows)) for hold in holds)
    assert len({(hold.halted, hold.halted_choice, hold.match and hold.match.phrase) for hold in holds}) == 1
    all_of_it = tokens_in(rows)
    for seen, hold in zip((parallel, held_back, reviewed), holds, strict=True):
        assert seen == all_of_it[: len(seen)], "in their order, and none is left out"
        assert hold.released == len(seen)
    assert len(parallel) >= len(held_back) >= len(reviewed)
    if not holds[0].halted:
        assert parallel == held_back == reviewed == all_of_it


@given(tokens=tokens_of_choices, cuts=st.sets(st.integers(1, 40)))
def test_in_parallel_nothing_ever_waits(tokens: list[tuple[int, Strand, str]], cuts: set[int]) -> None:
    hold, count = Watching(PHRASES), 0
    for row in rows_of(tokens, cuts):
        hold.accept(row)
        if hold.halted:
            return
        count += len(row.text_ends)
        assert hold.released == count


@given(tokens=tokens_of_choices, cuts=st.sets(st.integers(1, 40)))
def test_in_full_review_a_choice_is_seen_when_it_is_over_and_not_before(
    tokens: list[tuple[int, Strand, str]], cuts: set[int]
) -> None:
    rows, hold = rows_of(tokens, cuts), Reviewing(PHRASES)
    assert [piece for row in rows for piece in hold.accept(row)] == []
    if hold.halted:
        assert hold.finish() == []
        return
    over: set[int] = set()
    for choice in (2, 0, 1):
        released = hold.finish_choice(choice)
        over.add(choice)
        assert {delta.choice for delta in released} <= over
        if hold.halted:
            return
    assert hold.released == len(tokens)


def test_what_is_held_for_review_is_held_in_runs_and_keeps_its_tokens() -> None:
    hold = Reviewing(PHRASES)
    texts = [f" word{number}" for number in range(3 * RUN_TOKENS + 1)]
    for number, text in enumerate(texts, 1):
        hold.accept(Delta(0, "content", number, text, [len(text)], number, [[(text, -0.5)]]))
    released = hold.finish()
    assert len(released) == 4
    assert [text for *_, text in tokens_in(released)] == texts
    assert [likely for delta in released for likely in delta.logprobs or ()] == [[(text, -0.5)] for text in texts]
    assert [delta.emitted_at_us for delta in released] == [delta.first_sequence for delta in released], "of the oldest"
    assert all(a.first_sequence + len(a.text_ends) == b.first_sequence for a, b in pairwise(released))


def test_a_vector_waits_for_no_review() -> None:
    hold, row = Reviewing(PHRASES), Delta(0, "embedding", 1, "AAAA", [4], 1)
    assert hold.accept(row) == [row]


def test_for_a_reason_other_than_a_match_nothing_more_leaves() -> None:
    hold = Reviewing(PHRASES)
    hold.accept(Delta(0, "content", 1, "Hi", [2], 1))
    hold.halt()
    assert hold.finish() == []


@pytest.mark.parametrize("mode", ["hold_back", "parallel", "full_review"])
def test_without_phrases_nothing_waits_in_any_mode(mode: OutputMode) -> None:
    row = Delta(0, "content", 1, "Hi", [2], 1)
    assert looking(mode, PhraseSet(()), content_is_json=False, held=Held()).accept(row) == [row]


@given(tokens=tokens_of_choices, cuts=st.sets(st.integers(1, 40)), over=st.permutations([0, 1, 2]), gone=st.booleans())
def test_what_is_held_is_counted_until_it_leaves(
    tokens: list[tuple[int, Strand, str]], cuts: set[int], over: list[int], gone: bool
) -> None:
    held, other = Held(), Held()
    held.size_bytes = other.size_bytes = 7
    hold = Reviewing(PHRASES, held=held)
    for row in rows_of(tokens, cuts):
        hold.accept(row)
        assert held.size_bytes - 7 == hold.held_bytes >= 0
    for choice in over[:1] if gone else over:
        hold.finish_choice(choice)
        assert held.size_bytes - 7 == hold.held_bytes >= 0
    if gone:
        hold.forget()
    assert held.size_bytes == 7


def test_beyond_what_may_be_held_a_new_answer_that_would_be_held_as_well_is_refused_and_no_other() -> None:
    modes: dict[str, OutputMode] = {"r3": "hold_back"}
    core = PostSafety(
        PostSafetySettings(max_reviewed_mib=1), lambda each: Rules(PHRASES, modes.get(each.response_id, "full_review"))
    )
    core.assign(0, Restart(None), "owner")
    core.went_live(0)
    offsets = count()

    def refused(record: Record) -> bool:
        assert isinstance(record, Opened | Fence | Frame)
        effects = core.fold(record, 0, next(offsets), START_MS)
        return any(isinstance(each, Emit) and isinstance(each.record, Ending) for each in effects)

    for record in (opened("r1"), fence("r1"), *(frame(Row("r1", n, ["word " * 8_000])) for n in range(1, 40))):
        assert not refused(record)
    assert refused(opened("r2"))
    assert not refused(opened("r3"))
    core.fold(frame(Row("r1", 40, ["."], finish="stop")), 0, next(offsets), START_MS)
    assert not refused(opened("r4")), "what was held has left"
    for record in (fence("r4"), *(frame(Row("r4", n, ["word " * 8_000])) for n in range(1, 40))):
        assert not refused(record)
    core.revoke(0)
    core.assign(0, Restart(None), "owner")
    core.went_live(0)
    assert not refused(opened("r5")), "and so has what went to another owner"


# Through post-safety


def answered(mode: OutputMode, *texts: str) -> tuple[str, list[str], EndingCode]:
    """What was seen before the last frame, all that was, and how it ended."""
    world = World()
    digest = world.keep_policy(["make a bomb"], mode=mode)
    world.write(opened("r1", output_policy=digest), fence("r1"))
    member = Member(world)
    for number, text in enumerate(texts[:-1], 1):
        world.write(frame(Row("r1", number, [text])))
        member.run()
    before = world.answer("r1").text
    world.write(frame(Row("r1", len(texts), [texts[-1]], finish="stop")))
    member.run()
    answer = world.answer("r1")
    return before, [answer.text], answer.terminal.code


@pytest.mark.parametrize(
    ("mode", "before", "seen"),
    [
        ("hold_back", "I", "I"),
        ("parallel", "I make a bo", "I make a bomb"),
        ("full_review", "", ""),
    ],
)
def test_an_answer_that_is_halted(mode: OutputMode, before: str, seen: str) -> None:
    assert answered(mode, "I", " make", " a", " bo", "mb") == (before, [seen], EndingCode.SAFETY_HALTED)


@pytest.mark.parametrize(("mode", "before"), [("hold_back", "I"), ("parallel", "I make a"), ("full_review", "")])
def test_an_answer_that_is_fine(mode: OutputMode, before: str) -> None:
    assert answered(mode, "I", " make", " a", " cake") == (before, ["I make a cake"], EndingCode.COMPLETED)
