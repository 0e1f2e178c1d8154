"""The simulated engine in virtual time: text, lengths, timing, batching, blocks, failures."""

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore
from gpu_consumers.engines.simulated_text import EOS_TOKEN_ID, Vocabulary, repeats
from schemas.request import RepetitionDetection, Sampling
from streams.engine_args import SimulatedEngineSettings
from tests.unit.gpu_consumers.engines.simulated_runs import FAST, run


def request(name: str = "r", *, prompt: int = 8, max_tokens: int = 1_000, **more: object) -> EngineRequest:
    sampling = Sampling.model_validate({key: value for key, value in more.items() if key in Sampling.model_fields})
    return EngineRequest(
        name, list(range(prompt)), sampling, max_tokens, int(str(more.get("priority", 0))), str(more.get("salt", ""))
    )


def text_of(deltas: list[EngineDelta], name: str = "r") -> str:
    return "".join(delta.text for delta in deltas if delta.request_id == name)


def tokens_of(deltas: list[EngineDelta], name: str = "r") -> list[int]:
    return [token for delta in deltas if delta.request_id == name for token in delta.token_ids]


def answer(*, settings: SimulatedEngineSettings = FAST, **more: object) -> tuple[str, list[int], str]:
    core = SimulatedCore(settings)
    core.submit(request(**more), 0.0)  # type: ignore[arg-type]
    deltas = run(core)
    assert [delta.finish for delta in deltas[:-1]] == [""] * (len(deltas) - 1)
    return text_of(deltas), tokens_of(deltas), deltas[-1].finish


def test_an_answer_ends_by_itself_after_some_hundred_tokens_and_is_always_the_same() -> None:
    text, tokens, finish = answer()
    assert finish == "stop"
    assert tokens[-1] == EOS_TOKEN_ID
    assert 120 <= len(tokens) <= 480
    assert (text, tokens, finish) == answer()


def test_another_prompt_and_another_seed_give_another_answer() -> None:
    assert len({answer()[0], answer(prompt=9)[0], answer(seed=1)[0], answer(seed=2)[0]}) == 4


def test_max_tokens_cuts_the_same_answer_short() -> None:
    text, tokens, finish = answer(max_tokens=50)
    assert finish == "length"
    assert len(tokens) == 50
    assert answer()[0].startswith(text)


def test_ignore_eos_and_min_tokens_are_honoured() -> None:
    assert len(answer(max_tokens=900, ignore_eos=True)[1]) == 900
    assert len(answer(max_tokens=900, min_tokens=700)[1]) == 700


@given(stop=st.lists(st.sampled_from(["river", " fox", "ry", "e", ". ", "day 🌊"]), min_size=1, max_size=3))
@settings(max_examples=50)
def test_a_stop_string_ends_the_answer_and_nothing_of_it_is_shown(stop: list[str]) -> None:
    whole = answer(max_tokens=400, ignore_eos=True)[0]
    text, _, finish = answer(max_tokens=400, ignore_eos=True, stop=stop)
    found = [whole.find(string) for string in stop if string in whole]
    assert whole.startswith(text)
    if found:
        assert finish == "stop"
        assert not any(string in text for string in stop)
        assert len(text) <= min(found)
    else:
        assert (text, finish) == (whole, "length")


@given(stop=st.lists(st.sampled_from(["river", " fox", "ry", "e", ". ", "day 🌊"]), min_size=1, max_size=3))
@settings(max_examples=50)
def test_a_stop_string_that_is_to_be_shown_is_the_last_thing_shown(stop: list[str]) -> None:
    whole = answer(max_tokens=400, ignore_eos=True)[0]
    text, _, finish = answer(max_tokens=400, ignore_eos=True, stop=stop, include_stop_str_in_output=True)
    ends = [whole.find(string) + len(string) for string in stop if string in whole]
    assert whole.startswith(text)
    assert finish == ("stop" if ends else "length")
    # Of a token that completes several stop strings, which one is shown is the engine's choice.
    assert text == (whole[: min(ends)] if ends else whole)


def test_the_end_of_an_answer_is_shown_to_who_wants_to_see_special_tokens() -> None:
    hidden, tokens, _ = answer(include_stop_str_in_output=True)
    shown, same, _ = answer(include_stop_str_in_output=True, skip_special_tokens=False)
    assert (shown, same) == (hidden + "<eos>", tokens)
    assert answer(skip_special_tokens=False)[0] == hidden


def test_bad_words_are_left_out_and_of_several_tokens_only_the_last() -> None:
    whole = answer(max_tokens=2_000, ignore_eos=True)[0]
    assert all(word in whole for word in (" fox", "lamps of the village", "🏮", " stones"))
    text = answer(max_tokens=2_000, ignore_eos=True, bad_words=["fox", "lamps of the village", "never said", "🏮"])[0]
    assert not any(word in text for word in (" fox", "lamps of the village", "🏮"))
    assert "lamps of the were" in text
    assert " stones" in text


@given(bad=st.lists(st.sampled_from(["fox", "🌊", "the", ".", "🏔️", "a map"]), max_size=4), seed=st.integers(0, 9))
@settings(max_examples=30)
def test_text_and_tokens_agree_whatever_is_forbidden(bad: list[str], seed: int) -> None:
    core = SimulatedCore(FAST)
    core.submit(request(max_tokens=600, ignore_eos=True, bad_words=bad, seed=seed), 0.0)
    deltas = run(core)
    assert core.vocabulary.decode(tokens_of(deltas)) == text_of(deltas)
    assert not any(re.search(rf"\b{word}\b", text_of(deltas)) for word in bad if word.isascii() and word != ".")
    assert not any(word in text_of(deltas) for word in bad if not word.isascii())


def test_only_allowed_tokens_are_said_and_the_end_is_one_of_them() -> None:
    some = sorted(set(answer()[1]) - {EOS_TOKEN_ID})[::3]
    _, tokens, finish = answer(max_tokens=600, allowed_token_ids=some)
    assert set(tokens) <= set(some)
    assert (len(tokens), finish) == (600, "length")
    _, tokens, finish = answer(max_tokens=600, allowed_token_ids=[*some, EOS_TOKEN_ID])
    assert (tokens[-1], finish) == (EOS_TOKEN_ID, "stop")


def test_where_no_word_of_the_story_is_allowed_something_else_is_said() -> None:
    assert answer(max_tokens=5, allowed_token_ids=[ord("!")])[:2] == ("!!!!!", [ord("!")] * 5)
    assert answer(max_tokens=5, allowed_token_ids=[1_000_000])[:2] == ("", [1_000_000] * 5)


def test_where_nothing_at_all_may_be_said_the_answer_ends() -> None:
    core = SimulatedCore(FAST)
    only = core.vocabulary.find(" fox")
    assert only is not None
    text, tokens, finish = answer(max_tokens=5, allowed_token_ids=only, bad_words=["fox"])
    assert (text, tokens, finish) == ("", [EOS_TOKEN_ID], "stop")


def test_an_answer_that_repeats_itself_is_ended_where_that_was_asked() -> None:
    looping = FAST.model_copy(update={"script": "ho ho"})
    rule = {"max_pattern_size": 4, "min_count": 3}
    _, tokens, finish = answer(settings=looping, max_tokens=100, repetition_detection=rule)
    assert finish == "stop"
    assert repeats(tokens, RepetitionDetection.model_validate(rule))
    assert not repeats(tokens[:-1], RepetitionDetection.model_validate(rule))
    _, tokens, _ = answer(settings=looping, max_tokens=100, min_tokens=50, repetition_detection=rule)
    assert len(tokens) == 50
    assert answer(max_tokens=100, repetition_detection=rule) == answer(max_tokens=100)


def test_a_preempted_request_goes_on_under_its_own_rules() -> None:
    tight = FAST.model_copy(update={"kv_blocks": 14, "prefix_cache": False, "block_tokens": 4})
    core = SimulatedCore(tight)
    for name in ("a", "b"):
        core.submit(request(name, max_tokens=40, ignore_eos=True, bad_words=["fox"]), 0.0)
    deltas = run(core)
    assert core.preemptions
    alone = answer(max_tokens=40, ignore_eos=True, bad_words=["fox"])[0]
    assert {text_of(deltas, name) for name in ("a", "b")} == {alone}


def test_a_stop_token_ends_the_answer() -> None:
    tokens = answer()[1]
    text, told, _ = answer(stop_token_ids=[tokens[20]])
    assert told == tokens[: tokens.index(tokens[20]) + 1]
    shown, same, _ = answer(stop_token_ids=[tokens[20]], include_stop_str_in_output=True)
    assert same == told
    assert shown.startswith(text)
    assert len(shown) > len(text)


def test_characters_are_split_over_tokens_and_never_over_texts() -> None:
    core = SimulatedCore(FAST)
    core.submit(request(max_tokens=2_000, ignore_eos=True), 0.0)
    deltas = run(core)
    assert any(delta.text == "" for delta in deltas)
    assert "🌊" in text_of(deltas)
    assert core.vocabulary.decode(tokens_of(deltas)) == text_of(deltas)


@given(st.text(max_size=60))
def test_every_text_survives_its_tokens(text: str) -> None:
    vocabulary = Vocabulary()
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    passage = vocabulary.tokenize(text)
    assert vocabulary.decode(passage.token_ids) == "".join(passage.texts) == text


def test_a_script_is_said_at_known_tokens_by_its_share_of_the_prompts() -> None:
    script = "Deep in the hills lived the silver dragon. "
    scripted = SimulatedEngineSettings(script=script, script_share=1.0)
    assert answer(settings=scripted, max_tokens=9)[0] == script.strip()
    half = SimulatedEngineSettings(script=script, script_share=0.5)
    shares = ["silver dragon" in answer(settings=half, prompt=length)[0] for length in range(1, 61)]
    assert 15 < sum(shares) < 45


def test_first_token_after_ttft_and_prompt_then_one_per_interval() -> None:
    core = SimulatedCore(SimulatedEngineSettings(ttft_ms=20, prompt_token_us=100, inter_token_ms=18, step_ms=4.5))
    core.submit(request(prompt=100, max_tokens=11), 5.0)
    assert core.next_due_s == pytest.approx(5.030)
    assert core.step(5.029) == []
    times = []
    while (due_s := core.next_due_s) is not None:
        times.append(due_s)
        assert len(core.step(due_s)) == 1
    assert times[0] == pytest.approx(5.030)
    assert times[-1] - times[0] == pytest.approx(0.180, abs=0.0046)


def test_streams_that_run_together_leave_in_common_steps() -> None:
    core = SimulatedCore(FAST)
    for index in range(100):
        core.submit(request(f"r{index}", prompt=index + 1, max_tokens=20), index * 1e-4)
    assert len(run(core, 0.0101)) < 10
    batches = []
    while (due_s := core.next_due_s) is not None:
        batches.append(len(core.step(due_s)))
    assert sum(batches) / len(batches) > 10


def test_a_call_that_comes_late_catches_up() -> None:
    core = SimulatedCore(FAST)
    core.submit(request(max_tokens=6), 0.0)
    late = core.step(1.0)
    assert text_of(late) == answer(max_tokens=6)[0]
    assert late[-1].finish == "length"


def test_the_batch_limit_holds_and_priority_decides_who_is_next() -> None:
    core = SimulatedCore(FAST.model_copy(update={"max_running": 1}))
    for index in range(4):
        core.submit(request(f"batch{index}", max_tokens=5, priority=2), 0.0)
    core.submit(request("urgent", max_tokens=5, priority=0), 0.0)
    assert (core.stats().running, core.stats().waiting) == (1, 4)
    ends = [delta.request_id for delta in run(core) if delta.finish]
    assert ends == ["batch0", "urgent", "batch1", "batch2", "batch3"]


def test_a_second_prompt_with_the_same_beginning_is_cached_within_its_tenant() -> None:
    core = SimulatedCore(FAST)
    for name, salt in (("first", "a"), ("second", "a"), ("stranger", "b")):
        core.submit(request(name, prompt=70, max_tokens=2, salt=salt), 0.0)
        cached = {delta.cached_tokens for delta in run(core)}
        assert cached == ({64} if name == "second" else {0})


@pytest.mark.parametrize("more", [{}, {"stop": ["never"]}], ids=["plain", "looked at"])
def test_a_next_turn_finds_what_was_answered_too(more: dict[str, object]) -> None:
    core = SimulatedCore(FAST)
    core.submit(request("first", prompt=20, max_tokens=61, ignore_eos=True, **more), 0.0)
    said = tokens_of(run(core), "first")
    assert len(said) == 61
    for name, begins, found in (("next", said, 80), ("edited", [*said[:30], 0, *said[31:]], 48)):
        turn = EngineRequest(name, [*range(20), *begins, 1, 2, 3], Sampling(), 1)
        core.submit(turn, 0.0)
        [delta] = run(core)
        assert delta.cached_tokens == found, "whole blocks of 16, without the last token, which nobody computed"


def test_of_a_prompt_that_is_displaced_the_beginning_stays_longest() -> None:
    core = SimulatedCore(FAST.model_copy(update={"kv_blocks": 20}))
    for name, tokens in (("kept", range(160)), ("other", range(1_000, 1_180)), ("again", range(160))):
        core.submit(EngineRequest(name, [*tokens], Sampling(), 1), 0.0)
        deltas = run(core)
    assert deltas[0].cached_tokens == 128, "eight of ten blocks: the last two had to go"


def test_abort_frees_slot_and_blocks_at_once_and_nothing_follows() -> None:
    core = SimulatedCore(FAST.model_copy(update={"max_running": 1}))
    core.submit(request("a", prompt=100), 0.0)
    core.submit(request("b", prompt=100), 0.0)
    run(core, 0.1)
    used = core.stats().kv_blocks_used
    assert used >= 7
    core.abort("b", 0.1)
    assert core.stats().waiting == 0
    core.abort("a", 0.1)
    core.abort("a", 0.1)
    assert (core.stats().running, core.stats().kv_blocks_used) == (0, 0)
    assert run(core) == []


def test_when_blocks_run_out_the_last_comer_waits_and_every_answer_stays_whole() -> None:
    tight = FAST.model_copy(update={"kv_blocks": 12, "prefix_cache": False})
    core = SimulatedCore(tight)
    for index in range(4):
        core.submit(request(f"r{index}", prompt=16 + index, max_tokens=100, ignore_eos=True), 0.0)
    deltas = run(core)
    assert core.preemptions > 0
    for index in range(4):
        assert text_of(deltas, f"r{index}") == answer(prompt=16 + index, max_tokens=100, ignore_eos=True)[0]
    assert core.stats().kv_blocks_used == 0


def test_what_loses_its_blocks_is_computed_again() -> None:
    tight = FAST.model_copy(update={"kv_blocks": 12, "prefix_cache": False})
    core = SimulatedCore(tight)
    for index in range(4):
        core.submit(request(f"r{index}", prompt=16 + index, max_tokens=100, ignore_eos=True), 0.0)
    run(core)
    assert core.stats().preemptions == core.preemptions > 0
    assert core.recomputed_tokens >= 16 * core.preemptions, "its prompt, and what it had said"


def test_an_answer_that_fills_the_memory_ends_there() -> None:
    core = SimulatedCore(FAST.model_copy(update={"kv_blocks": 4}))
    core.submit(request(prompt=40, max_tokens=1_000, ignore_eos=True), 0.0)
    deltas = run(core)
    assert (len(tokens_of(deltas)), deltas[-1].finish, deltas[-1].error) == (4 * 16 - 40, "length", None)
    assert core.preemptions == 0


def test_prompts_may_be_computed_one_after_another() -> None:
    def first_tokens_s(**settings: bool) -> list[float]:
        core = SimulatedCore(FAST.model_copy(update={"prompt_token_us": 1_000, **settings}))
        for name in ("a", "b", "c"):
            core.submit(request(name, prompt=100, salt=name), 0.0)
        found: dict[str, float] = {}
        while len(found) < 3:
            due_s = core.next_due_s
            assert due_s is not None
            for delta in core.step(due_s):
                found.setdefault(delta.request_id, due_s)
        return [round(at_s, 3) for at_s in found.values()]

    assert first_tokens_s() == [0.11] * 3
    assert first_tokens_s(prompts_in_turn=True) == [0.11, 0.21, 0.31]


def test_a_prompt_larger_than_the_cache_is_refused() -> None:
    core = SimulatedCore(FAST.model_copy(update={"kv_blocks": 2}))
    core.submit(request(prompt=64), 0.0)
    (refusal,) = run(core)
    assert refusal.error is not None
    assert refusal.finish == ""


def test_failures_come_as_the_settings_say() -> None:
    core = SimulatedCore(FAST.model_copy(update={"refuse_every": 2}))
    for index in range(4):
        core.submit(request(f"r{index}", max_tokens=2), 0.0)
    assert {delta.request_id for delta in run(core) if delta.error} == {"r1", "r3"}

    dying = FAST.model_copy(update={"die_after_tokens": 5})
    core = SimulatedCore(dying)
    core.submit(request(), 0.0)
    with pytest.raises(EngineDied, match="after 5 tokens"):
        run(core)
    core = SimulatedCore(dying, starts=2)
    core.submit(request(), 0.0)
    assert run(core)[-1].finish == "stop"

    core = SimulatedCore(FAST.model_copy(update={"stall_after_tokens": 3, "stall_ms": 2_000}))
    core.submit(request(max_tokens=6), 0.0)
    assert len(run(core, 1.0)) == 3
    assert len(run(core)) == 3


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="inter_token"):
        SimulatedEngineSettings.model_validate({"inter_token": 3})


@given(
    st.lists(
        st.tuples(st.sampled_from(["submit", "abort", "step"]), st.integers(0, 5), st.integers(1, 90)), max_size=60
    )
)
@settings(max_examples=80)
def test_whatever_happens_blocks_and_slots_are_conserved(script: list[tuple[str, int, int]]) -> None:
    core = SimulatedCore(FAST.model_copy(update={"kv_blocks": 14, "max_running": 3}))
    now_s, open_requests, ended = 0.0, set[str](), set[str]()
    for number, (what, which, size) in enumerate(script):
        name = f"r{which}"
        if what == "submit" and name not in open_requests:
            core.submit(request(name, prompt=size, max_tokens=size, priority=number % 3), now_s)
            open_requests.add(name)
            ended.discard(name)
        elif what == "abort":
            core.abort(name, now_s)
            open_requests.discard(name)
        elif what == "step":
            now_s += size / 1_000
            for delta in core.step(now_s):
                assert delta.request_id in open_requests
                if delta.finish or delta.error:
                    open_requests.discard(delta.request_id)
        stats = core.stats()
        assert stats.running <= 3
        assert 0 <= stats.kv_blocks_used <= 14
    for delta in run(core):
        if delta.finish or delta.error:
            open_requests.discard(delta.request_id)
    assert not open_requests
    assert (core.stats().running, core.stats().waiting, core.stats().kv_blocks_used) == (0, 0, 0)
