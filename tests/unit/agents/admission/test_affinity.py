"""What begins alike goes where that has been, as long as nobody is overrun by it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.admission.affinity import (
    FULL_MEMORY,
    LEADING_TOKENS,
    MOST_TIMES,
    OLDER_MS,
    SLOW_TIMES,
    Standing,
    best,
    cache_id,
    times_slower,
    within_bounds,
)
from schemas.base import Scope
from schemas.request import Message, ReplyTo, Request, TextPart, Tool
from streams.rendezvous import score

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
names = st.sampled_from([f"worker-{number}" for number in range(12)])
ids = st.integers(0, 10_000).map(str)


def said(role: str, text: str) -> Message:
    return Message.model_validate({"role": role, "content": [TextPart(text=text)]})


def asked(*messages: Message, tenant_id: str = "acme", **fields: object) -> Request:
    values: dict[str, object] = {
        "response_id": "r1", "scope": Scope(tenant_id=tenant_id), "model": "m", "messages": list(messages),
        "reply_to": ReplyTo(partition=0), "accepted_at_ms": 1, "deadline_ms": 2,
    }  # fmt: skip
    return Request.model_validate(values | fields)


def of_chat(*messages: Message, **fields: Any) -> str:
    return cache_id(asked(*messages, **fields), [1, 2, 3])


def of_prompt(token_ids: Sequence[int], **fields: Any) -> str:
    return cache_id(asked(prompt=list(token_ids), endpoint="completions", **fields), token_ids)


def first(workers: Sequence[str], key: str) -> str:
    return max(workers, key=lambda worker_id: score(key, worker_id))


@given(st.none() | texts, texts, st.lists(st.tuples(st.sampled_from(["assistant", "user", "tool"]), texts), max_size=4))
def test_all_turns_of_a_conversation_have_one_cache_id(
    system: str | None, opening: str, later: list[tuple[str, str]]
) -> None:
    begin = ([said("system", system)] if system is not None else []) + [said("user", opening)]
    turns = [said(role, text) for role, text in later]
    assert of_chat(*begin, *turns) == of_chat(*begin)
    assert of_chat(*begin, *turns, tools=[Tool(name="look")]) == of_chat(*begin)


@given(texts, texts, texts, texts)
def test_conversations_that_begin_otherwise_have_others(system: str, opening: str, other: str, moved: str) -> None:
    begun = of_chat(said("system", system), said("user", opening))
    if other != opening:
        assert of_chat(said("system", system), said("user", other)) != begun
    assert of_chat(said("system", system + moved), said("user", opening)) != begun
    assert of_chat(said("user", system), said("user", opening)) != begun
    one, two = (system + moved, opening), (system, moved + opening)
    assert of_chat(*map(said, ("system", "user"), one)) != of_chat(*map(said, ("system", "user"), two))


@given(texts, texts, st.lists(st.integers(0, 9), min_size=1))
def test_two_tenants_with_the_same_prompt_have_nothing_in_common(text: str, key: str, prompt: list[int]) -> None:
    """Not even where a client names what belongs together."""
    assert of_chat(said("user", text)) != of_chat(said("user", text), tenant_id="gold")
    assert of_chat(said("user", text), cache_key=key) != of_chat(said("user", text), cache_key=key, tenant_id="gold")
    assert of_prompt(prompt) != of_prompt(prompt, tenant_id="gold")


@given(texts, texts, texts)
def test_a_client_may_say_what_belongs_together(key: str, text: str, other: str) -> None:
    named = of_chat(said("user", text), cache_key=key)
    assert of_chat(said("user", other), cache_key=key) == named == of_prompt([1], cache_key=key)
    assert named != of_chat(said("user", text))
    assert named != of_chat(said("user", text), cache_key=f"{key} 2")


def test_raw_prompts_go_by_their_leading_tokens() -> None:
    leading = list(range(LEADING_TOKENS))
    assert of_prompt(leading) == of_prompt([*leading, 1]) == of_prompt([*leading, 2, 3])
    assert of_prompt(leading) != of_prompt([7, *leading[1:]])
    assert of_prompt(leading[:-1]) != of_prompt(leading)
    as_text = cache_id(asked(prompt="as many words", endpoint="completions"), leading)
    assert as_text == of_prompt(leading), "what a worker is given is the same"


def test_of_what_is_embedded_nothing_is_kept() -> None:
    assert cache_id(asked(inputs=["a text"], endpoint="embeddings"), [1, 2]) == ""


@given(st.sets(names, min_size=2), st.lists(ids, min_size=1, max_size=50))
def test_a_worker_that_comes_or_goes_moves_what_is_its_own_and_nothing_else(workers: set[str], keys: list[str]) -> None:
    before = sorted(workers)
    one, after = before[0], before[1:]
    for key in keys:
        if first(before, key) != one:
            assert first(after, key) == first(before, key)
        assert first(before, key) in (first(after, key), one)
        assert first(before[::-1], key) == first(before, key)


def test_keys_are_spread_evenly() -> None:
    workers = [f"worker-{number}" for number in range(4)]
    counts = Counter(first(workers, f"{number:x}") for number in range(4_000))
    assert all(850 <= counts[worker_id] <= 1_150 for worker_id in workers)


standings = st.builds(
    Standing,
    burden_tokens=st.floats(0, 10**7),
    queued_tokens=st.floats(0, 10**6),
    slack_tokens=st.floats(0, 10**4),
    has_slot=st.booleans(),
    memory=st.floats(0, 1),
    oldest_ms=st.integers(0, 10**5),
)


@given(st.dictionaries(names, standings, min_size=1), st.floats(0, 4))
def test_there_is_always_somebody_and_nobody_beyond_the_bound(workers: dict[str, Standing], excess: float) -> None:
    fit = within_bounds(workers, excess)
    assert fit
    mean = sum(each.burden_tokens for each in workers.values()) / len(workers)
    for name in fit:
        most = (1 + excess) * mean + workers[name].slack_tokens
        assert workers[name].burden_tokens <= most or workers[name].burden_tokens == pytest.approx(most)
    assert sorted(within_bounds(dict(reversed(workers.items())), excess)) == sorted(fit)
    assert best(fit, "a key", excess) in fit


def test_a_worker_that_has_more_than_its_part_is_passed_over_until_it_has_not() -> None:
    hot, others = Standing(1_300, 0), {"b": Standing(900, 0), "c": Standing(800, 0)}
    assert [*within_bounds({"a": hot, **others}, 0.25)] == ["b", "c"]
    assert [*within_bounds({"a": hot._replace(burden_tokens=1_200), **others}, 0.25)] == ["a", "b", "c"]
    assert [*within_bounds({"a": hot._replace(slack_tokens=100), **others}, 0.25)] == ["a", "b", "c"], "for its batch"


@pytest.mark.parametrize(
    "worse",
    [{"has_slot": False}, {"memory": FULL_MEMORY}, {"oldest_ms": OLDER_MS + 1}],
    ids=str,
)
def test_who_is_full_or_slow_is_passed_over_unless_all_are(worse: dict[str, float]) -> None:
    good, bad = Standing(100, 0), Standing(100, 0)._replace(**worse)  # type: ignore[arg-type]
    assert [*within_bounds({"a": bad, "b": good}, 0.25)] == ["b"]
    assert [*within_bounds({"a": bad, "b": bad}, 0.25)] == ["a", "b"]


def test_where_all_have_waited_long_nobody_is_slow_for_having_waited_a_little_longer() -> None:
    def waits(*oldest_ms: int) -> list[str]:
        return list(within_bounds({f"w{each}": Standing(1, 0, oldest_ms=each) for each in oldest_ms}, 0.25))

    assert waits(40_000, 75_000) == ["w40000", "w75000"]
    assert waits(40_000, 90_000) == ["w40000"]


def test_nobody_waits_for_what_it_begins_with_behind_a_longer_queue() -> None:
    home, other = sorted(["a", "b"], key=lambda worker_id: score("a key", worker_id), reverse=True)
    even = Standing(5_000, 0, queued_tokens=1_000)
    assert best({home: even, other: even}, "a key", 0.25) == home
    assert best({home: even._replace(queued_tokens=2_000), other: even}, "a key", 0.25) == other
    assert best({home: even._replace(queued_tokens=0.0), other: even}, "a key", 0.25) == home


@given(st.dictionaries(names, st.floats(0, 1e6)))
def test_some_worker_is_never_slow_and_the_slower_counts_the_more(per_s: dict[str, float]) -> None:
    times = times_slower(per_s)
    assert all(SLOW_TIMES <= each <= MOST_TIMES for each in times.values())
    assert len(times) < max(len(per_s), 1)
    by_speed = sorted(per_s, key=per_s.__getitem__)
    counted = [times.get(name, 1.0) for name in by_speed]
    assert counted == sorted(counted, reverse=True)


@pytest.mark.parametrize(
    ("per_s", "slower"),
    [
        ({}, {}),
        ({"alone": 5.0}, {}),
        ({"a": 100.0, "b": 60.0, "c": 110.0}, {}),
        ({"a": 100.0, "b": 100.0, "slow": 10.0}, {"slow": 7.0}),
        ({"a": 100.0, "stands": 0.0}, {"stands": MOST_TIMES}),
        ({"a": 0.0, "b": 0.0}, {}),
    ],
)
def test_who_goes_less_than_half_as_fast_as_all_on_average_is_slow(
    per_s: dict[str, float], slower: dict[str, float]
) -> None:
    assert times_slower(per_s) == pytest.approx(slower)
