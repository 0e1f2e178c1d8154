"""Regrouping: the bytes of the schema, rows in order, nobody waits longer than agreed."""

from hypothesis import given
from hypothesis import strategies as st

from agents.post_safety.effects import Released
from agents.post_safety.regroup import MAX_CHARS, MAX_ROWS, Group, Regrouper
from agents.post_safety.strands import LaterCall, Strand, kind_and_call
from schemas.base import Scope
from schemas.responses import Release

SCOPES = [Scope(tenant_id="acme", end_user="ü\n"), Scope(tenant_id="open")]
tokens = st.lists(st.text(max_size=4), min_size=1, max_size=4)


def released(
    text: list[str],
    *,
    first_sequence: int = 2,
    scope: Scope = SCOPES[0],
    response_id: str = "r1",
    partition: int = 0,
    strand: Strand = "content",
) -> Released:
    ends = [len("".join(text[: index + 1])) for index in range(len(text))]
    scope_json = scope.model_dump_json().encode()
    return Released(partition, [(scope_json, response_id, 0, first_sequence, strand, "".join(text), ends, 7, None)])


@given(st.lists(st.tuples(tokens, st.sampled_from(SCOPES), st.integers(1, 2**31)), min_size=1, max_size=6))
def test_the_bytes_are_those_of_the_schema(rows: list[tuple[list[str], Scope, int]]) -> None:
    regrouper = Regrouper(10)
    for text, scope, first_sequence in rows:
        assert not regrouper.add(released(text, scope=scope, first_sequence=first_sequence), 0)
    [group] = regrouper.take_all()
    record = Release.model_validate_json(group.value)
    assert record.encode() == group.value
    assert record.text == ["".join(text) for text, _, _ in rows]
    assert [record.scopes[index] for index in record.scope] == [scope for _, scope, _ in rows]
    assert (group.rows, group.tokens) == (len(rows), sum(len(text) for text, _, _ in rows))


STRANDS: list[Strand] = ["content", "reasoning", "tool_name", "tool_arguments", LaterCall("tool_arguments", 1)]


@given(st.lists(st.sampled_from(STRANDS), min_size=1))
def test_rows_of_tools_keep_their_calls_in_the_bytes_of_the_schema(strands: list[Strand]) -> None:
    regrouper = Regrouper(10)
    for strand in strands:
        regrouper.add(released(["x"], strand=strand), 0)
    [group] = regrouper.take_all()
    record = Release.model_validate_json(group.value)
    assert record.encode() == group.value
    assert [*zip(record.kind, record.calls, strict=True)] == [kind_and_call(strand) for strand in strands]
    assert (record.call is None) == all(kind in ("content", "reasoning") for kind in record.kind)


def test_rows_wait_for_others_but_a_first_token_does_not() -> None:
    regrouper = Regrouper(10)
    regrouper.add(released(["a"]), 100)
    regrouper.add(released(["b"], partition=1), 104)
    assert regrouper.due_in_ms(105) == 5
    assert regrouper.take_due(109) == []
    assert [group.partition for group in regrouper.take_due(110)] == [0]
    regrouper.add(released(["c"], first_sequence=1, response_id="r2", partition=1), 111)
    [group] = regrouper.take_due(111)
    assert Release.model_validate_json(group.value).text == ["b", "c"]
    assert regrouper.due_in_ms(111) is None
    assert regrouper.take(1) is None


def test_a_record_does_not_outgrow_its_topic() -> None:
    regrouper = Regrouper(10)
    assert not regrouper.add(released(["a" * MAX_CHARS]), 0)
    [full] = regrouper.add(released(["b"]), 0)
    assert full.tokens == 1
    [rest] = regrouper.take_all()
    assert Release.model_validate_json(rest.value).text == ["b"]


@given(st.lists(st.lists(st.integers(1, MAX_CHARS // 2), min_size=1, max_size=8), max_size=3))
def test_rows_that_come_together_are_split_where_one_record_would_be_too_large(batches: list[list[int]]) -> None:
    regrouper, groups = Regrouper(10), list[Group]()
    for lengths in batches:
        rows = [row for length in lengths for row in released(["x" * length]).rows]
        groups += regrouper.add(Released(0, rows), 0)
    groups += regrouper.take_all()
    texts: list[str] = []
    for group in groups:
        record = Release.model_validate_json(group.value)
        assert sum(map(len, record.text)) <= MAX_CHARS
        texts += record.text
    assert [len(text) for text in texts] == [length for lengths in batches for length in lengths]


def test_rows_beyond_the_most_that_a_record_takes_make_another() -> None:
    regrouper = Regrouper(10)
    rows = [released([str(number)]).rows[0] for number in range(2 * MAX_ROWS + 1)]
    groups = [*regrouper.add(Released(0, rows), 0), *regrouper.take_all()]
    assert all(group.rows <= MAX_ROWS for group in groups)
    texts = [text for group in groups for text in Release.model_validate_json(group.value).text]
    assert texts == [str(number) for number in range(2 * MAX_ROWS + 1)]
