"""Regrouping: the bytes of the schema, rows in order, nobody waits longer than agreed."""

from hypothesis import given
from hypothesis import strategies as st

from agents.post_safety.core import Released
from agents.post_safety.hold_back import Delta
from agents.post_safety.regroup import MAX_CHARS, Group, Regrouper
from schemas.base import Scope
from schemas.responses import Release

SCOPES = [Scope(tenant_id="acme", end_user="ü\n"), Scope(tenant_id="open")]
tokens = st.lists(st.text(max_size=4), min_size=1, max_size=4)


def released(
    text: list[str], *, first_sequence: int = 2, scope: Scope = SCOPES[0], response_id: str = "r1", partition: int = 0
) -> Released:
    ends = [len("".join(text[: index + 1])) for index in range(len(text))]
    delta = Delta(0, "content", first_sequence, "".join(text), ends, 7)
    return Released(partition, response_id, scope.model_dump_json().encode(), delta)


@given(st.lists(st.tuples(tokens, st.sampled_from(SCOPES), st.integers(1, 2**31)), min_size=1, max_size=6))
def test_the_bytes_are_those_of_the_schema(rows: list[tuple[list[str], Scope, int]]) -> None:
    regrouper = Regrouper(10)
    for text, scope, first_sequence in rows:
        assert regrouper.add(released(text, scope=scope, first_sequence=first_sequence), 0) is None
    [group] = regrouper.take_all()
    record = Release.model_validate_json(group.value)
    assert record.encode() == group.value
    assert record.text == ["".join(text) for text, _, _ in rows]
    assert [record.scopes[index] for index in record.scope] == [scope for _, scope, _ in rows]
    assert (group.rows, group.tokens) == (len(rows), sum(len(text) for text, _, _ in rows))


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
    assert regrouper.add(released(["a" * MAX_CHARS]), 0) is None
    full = regrouper.add(released(["b"]), 0)
    assert isinstance(full, Group)
    assert full.tokens == 1
    [rest] = regrouper.take_all()
    assert Release.model_validate_json(rest.value).text == ["b"]
