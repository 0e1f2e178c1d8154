"""Several answers of one response: each sought through, told and billed by itself; one order and one end for all."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from agents.post_safety.hold_back import Delta, HoldBack
from agents.safety.phrases import PhraseSet
from agents.settlement.core import used_tokens
from schemas.endings import EndingCode
from schemas.generated import FinishReason
from streams.log.memory import Fault, FaultKind
from tests.unit.agents.post_safety.story import (
    DENY,
    Answer,
    Member,
    Row,
    World,
    ending,
    fence,
    frame,
    opened,
    told,
)

PHRASES = PhraseSet(DENY)


def rows_of(tokens: list[tuple[int, str]], finishes: dict[int, FinishReason] | None = None) -> list[Row]:
    """One token in each row; then the choices finish."""
    rows = [Row("r1", number, [text], choice=choice) for number, (choice, text) in enumerate(tokens, 1)]
    return [
        *rows,
        *(
            Row("r1", len(tokens) + 1, [], choice=choice, finish=reason)
            for choice, reason in sorted((finishes or {}).items())
        ),
    ]


def test_one_that_is_halted_ends_them_all_and_what_the_others_said_is_kept_and_billed() -> None:
    tokens = [(0, "Use"), (1, "Take"), (0, " secret"), (0, " sauce"), (0, " now"), (1, " salt")]
    answer = told(*rows_of(tokens), choices=2)
    assert (answer.said("content"), answer.said("content", choice=1)) == ("Use", "Take")
    assert answer.terminal.code is EndingCode.SAFETY_HALTED
    assert answer.terminal.finish_reasons == ["content_filter", "content_filter"]
    assert [bill.output_tokens for bill in answer.bills] == [4, 2], "what was generated is billed"
    assert [bill.released_tokens for bill in answer.bills] == [1, 1]
    assert all(bill.billable for bill in answer.bills)
    assert sum(map(used_tokens, answer.bills)) == 10 + 6
    assert (answer.terminal.usage.prompt_tokens, answer.terminal.usage.completion_tokens) == (10, 6)


def test_one_that_had_finished_before_another_was_halted_keeps_its_reason() -> None:
    rows = [
        Row("r1", 1, ["Take", " salt"], choice=1, finish="length"),
        Row("r1", 3, ["Use", " secret", " sauce", " now"]),
    ]
    answer = told(*rows, choices=2)
    assert answer.said("content", choice=1) == "Take salt"
    assert answer.terminal.finish_reasons == ["content_filter", "length"]
    assert [bill.finish_reason for bill in answer.bills] == ["content_filter", "length"]


def test_one_whose_end_was_held_behind_another_that_was_halted_is_not_told_to_be_complete() -> None:
    rows = [
        Row("r1", 1, ["Take"], choice=1),
        Row("r1", 2, ["Use", " secret"]),
        Row("r1", 4, [" salt"], choice=1, finish="stop"),
        Row("r1", 5, [" sauce", " now"]),
    ]
    answer = told(*rows, choices=2)
    assert (answer.said("content"), answer.said("content", choice=1)) == ("Use", "Take")
    assert answer.terminal.finish_reasons == ["content_filter", "content_filter"]
    assert [bill.released_tokens for bill in answer.bills] == [1, 1]


def test_nor_is_it_where_another_ending_wins_over_the_halt() -> None:
    both = frame(Row("r1", 1, ["secret"]), Row("r1", 2, ["Salt"], choice=1, finish="stop"))
    cancelled = ending("r1", EndingCode.CANCELLED, attempt="att_1")
    answer = told(both, Row("r1", 3, [" sauce", " now"]), cancelled, choices=2)
    assert (answer.text, answer.terminal.code) == ("", EndingCode.CANCELLED)
    assert answer.terminal.finish_reasons == ["cancelled", "cancelled"]


def test_a_phrase_stands_in_one_choice_and_never_across_two() -> None:
    tokens = [(0, "make"), (1, " a"), (0, " a"), (1, " bomb"), (2, "bomb")]
    answer = told(*rows_of(tokens, {0: "stop", 1: "stop", 2: "stop"}), choices=3)
    assert answer.terminal.code is EndingCode.COMPLETED
    assert [answer.said("content", choice=choice) for choice in range(3)] == ["make a", " a bomb", "bomb"]


def test_the_whole_prompt_and_what_was_held_for_it_stand_on_the_first_choice() -> None:
    answer = told(*rows_of([(2, "c"), (1, "b")], {0: "stop", 1: "length", 2: "stop"}), choices=3)
    assert [bill.uncached_input_tokens + bill.cached_input_tokens for bill in answer.bills] == [10, 0, 0]
    assert [bill.reserved_tokens for bill in answer.bills] == [110, 0, 0]
    assert [bill.output_tokens for bill in answer.bills] == [0, 1, 1]
    assert [bill.usage_id for bill in answer.bills] == ["r1/0", "r1/1", "r1/2"]
    assert answer.terminal.finish_reasons == ["stop", "length", "stop"]


def test_a_batch_result_has_every_choice_whole() -> None:
    rows = [
        Row("r1", 1, ["Hmm"], kind="reasoning", choice=1),
        Row("r1", 2, ["Yes"], choice=0),
        Row("r1", 3, ["f"], kind="tool_name", choice=2),
        Row("r1", 4, ["No"], choice=1, finish="length"),
        Row("r1", 5, ["{}"], kind="tool_arguments", choice=2, finish="stop"),
        Row("r1", 6, ["."], choice=0, finish="stop"),
    ]
    result = told(*rows, choices=3, custom_id="job-1").result.response
    assert result is not None
    completion = ChatCompletion.model_validate(result.body, strict=True)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert [choice.message.content for choice in completion.choices] == ["Yes.", "No", None]
    assert [choice.finish_reason for choice in completion.choices] == ["stop", "length", "tool_calls"]
    assert result.body["choices"][1]["message"]["reasoning_content"] == "Hmm"
    assert result.body["usage"]["completion_tokens"] == 6


def test_a_takeover_ends_the_choices_that_had_not_finished() -> None:
    answer = told(
        *rows_of([(0, "Hi"), (1, "Yo")], {1: "stop"}),
        fence("r1", "att_2", takeover=True),
        Row("r1", 3, [" late"], choice=0),
        ending("r1", EndingCode.GENERATION_INTERRUPTED, attempt="att_2"),
        choices=3,
    )
    assert [answer.said("content", choice=choice) for choice in range(3)] == ["Hi", "Yo", ""]
    assert answer.terminal.finish_reasons == ["error", "stop", "error"]
    assert [bill.billable for bill in answer.bills] == [False] * 3
    assert sum(map(used_tokens, answer.bills)) == 0, "settlement returns all that was held"


WORDS = [" so", "make", " a", " bomb", " secret", " sauce", " salt", "🙂", ""]
tokens_of_three = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(WORDS)), max_size=25)


@given(tokens_of_three, st.lists(st.integers(1, 4), max_size=25))
def test_each_choice_is_held_back_as_if_it_were_alone_and_all_leave_in_one_order(
    tokens: list[tuple[int, str]], sizes: list[int]
) -> None:
    def run(deltas: list[Delta]) -> tuple[list[Delta], HoldBack]:
        hold = HoldBack(PHRASES)
        released = [each for delta in deltas for each in hold.accept(delta)]
        return released + hold.finish(), hold

    deltas = [Delta(choice, "content", number, text, [len(text)], 1) for number, (choice, text) in enumerate(tokens, 1)]
    released, hold = run(deltas)
    joined, joined_hold = run(joined_rows(deltas, sizes))
    assert (joined_hold.released, joined_hold.halted) == (hold.released, hold.halted), "however they are grouped"

    sequences = [each.first_sequence + index for each in joined for index in range(len(each.text_ends))]
    assert sequences == list(range(1, hold.released + 1)), "in order, without a gap, each once"
    said, generated = texts_of(released), texts_of(deltas)
    denied = {choice for choice, text in generated.items() if PHRASES.first_match(text)}
    assert hold.halted == bool(denied)
    assert hold.halted_choice in denied if denied else hold.halted_choice is None
    assert not any(PHRASES.first_match(text) for text in said.values())
    assert all(generated[choice].startswith(text) for choice, text in said.items())
    if not hold.halted:
        assert said == {choice: text for choice, text in generated.items() if choice in said}
        assert hold.released == len(tokens)


def joined_rows(deltas: list[Delta], sizes: list[int]) -> list[Delta]:
    """Neighbours of the same choice in one row, up to so many."""
    rows: list[Delta] = []
    left = iter([*sizes, *[1] * len(deltas)])
    room = 0
    for delta in deltas:
        if rows and room and rows[-1].choice == delta.choice:
            last = rows[-1]
            end = last.text_ends[-1] + len(delta.text)
            rows[-1] = last._replace(text=last.text + delta.text, text_ends=[*last.text_ends, end])
            room -= 1
        else:
            rows.append(delta)
            room = next(left) - 1
    return rows


def texts_of(deltas: list[Delta]) -> dict[int, str]:
    texts: defaultdict[int, list[str]] = defaultdict(list)
    for delta in deltas:
        texts[delta.choice].append(delta.text)
    return {choice: "".join(parts) for choice, parts in texts.items()}


@settings(max_examples=60)
@given(
    tokens_of_three,
    st.dictionaries(st.integers(0, 2), st.sampled_from(["stop", "length"]), max_size=3),
    st.integers(1, 5),
    st.lists(st.integers(1, 30), max_size=3, unique=True),
)
def test_whoever_rebuilds_them_says_the_same(
    tokens: list[tuple[int, str]], finishes: dict[int, FinishReason], rows_per_frame: int, kills: list[int]
) -> None:
    """The process is killed at some of its writes, and reads the log again."""
    rows = rows_of(tokens, finishes)
    frames = [frame(*rows[begin : begin + rows_per_frame]) for begin in range(0, len(rows), rows_per_frame)]
    last = ending("r1", EndingCode.DEADLINE_EXCEEDED, by="post-safety")

    def answer(faults: list[Fault]) -> Answer:
        world = World(faults)
        digest = world.keep_policy(DENY)
        world.write(opened("r1", choices=3, output_policy=digest, custom_id="job-1"), fence("r1"), *frames, last)
        Member(world).run(3_000)
        return world.answer("r1")

    once = answer([])
    again = answer([Fault(FaultKind.CRASH, "ps.producer", number) for number in kills])
    assert again.tokens == once.tokens
    assert without_times(again) == without_times(once)
    assert len(once.bills) == 3
    assert sum(bill.output_tokens for bill in once.bills) == once.terminal.usage.completion_tokens
    assert sum(bill.released_tokens for bill in once.bills) == len(once.tokens)


def without_times(answer: Answer) -> tuple[object, ...]:
    terminal = answer.terminal
    bills = [(bill.output_tokens, bill.released_tokens, bill.finish_reason, bill.billable) for bill in answer.bills]
    return terminal.code, terminal.finish_reasons, terminal.usage, terminal.sequence_number, bills
