"""The judge of histories: each thing that may not be is found, whoever saw it, and nothing is that may be."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.endings import ENDINGS
from tests.history.check import CHARGED
from tests.history.saw import Answer, Job, Span
from tests.unit.history.lives import History, whole

Break = Callable[[History], object]


def spans(history: History, *changed: tuple[int, int, str]) -> None:
    """Its client was told these, and nobody said when they were emitted."""
    history.answers[0].spans[:] = [Span(first, last, text, 0, 1) for first, last, text in changed]


def void_us(history: History) -> int:
    """When the overtaken attempt emitted what does not count."""
    return next(int(frame["emitted_at_us"]) for frame in history.of("generated", "frame") if frame["text"] == [" ran"])


def zombie_told(history: History) -> None:
    history.answers[0].spans[1] = Span(3, 4, " went for", void_us(history), 2)


def zombie_released(history: History) -> None:
    history.release("r", 3, [" ran"], void_us(history))


def zombie_released_alike(history: History) -> None:
    """It says the same, as a deterministic engine does: no text shows whose it was."""
    history.of("responses", "release")[1]["emitted_at_us"] = [void_us(history)]


def released_beyond_its_end(history: History) -> None:
    history.release("r", 6, [" again"], void_us(history))


def two_responses_for_one_key(history: History) -> None:
    whole("other", history).answers.pop()
    history.answers[0].response_ids.insert(0, "other")


def nothing_of_it_was_released(history: History) -> None:
    for _ in range(4):
        history.drop("responses", "release")


def complete_and_cut(history: History) -> None:
    """Told as complete one token too early, by all alike."""
    history.drop("responses", "release")
    history.of("responses", "terminal")[0]["sequence_number"] = 5
    history.of("usage", "usage")[0]["released_tokens"] = history.bills[0]["released_tokens"] = 4
    history.answers[0].spans.pop()
    history.answers[0].terminal_sequence = 5


BROKEN: dict[str, tuple[str, Break]] = {
    "a client waits for the end": ("lost", lambda h: setattr(h.answers[0], "code", "")),
    "a token did not come": ("lost", lambda h: spans(h, (1, 2, "A fox"), (4, 5, " for it"))),
    "the last tokens did not come": ("lost", lambda h: h.answers[0].spans.pop()),
    "an accepted request is nowhere": ("lost", lambda h: h.saw("gone", [])),
    "a request has no end": ("lost", lambda h: h.write("requests", type="request", response_id="silent")),
    "no terminal": ("lost", lambda h: h.drop("responses", "terminal")),
    "nothing released": ("lost", nothing_of_it_was_released),
    "complete and cut": ("lost", complete_and_cut),
    "no usage": ("lost", lambda h: h.drop("usage", "usage")),
    "no row": ("lost", lambda h: h.bills.clear()),
    "a job without a result": ("lost", lambda h: h.jobs.append(Job(custom_id="j", tenant="demo"))),
    "a token came twice": ("doubled", lambda h: spans(h, (1, 2, "A fox"), (2, 5, " fox went for it"))),
    "two terminals": ("doubled", lambda h: h.end("r", 4, 2, "cancelled")),
    "two responses": ("doubled", two_responses_for_one_key),
    "two usage events": ("doubled", lambda h: h.write("usage", **{**h.of("usage")[0], "output_tokens": 6})),
    "two rows": ("doubled", lambda h: h.bills.append(dict(h.bills[0]))),
    "released beyond its end": ("doubled", released_beyond_its_end),
    "an overtaken attempt's token was told": ("zombie", zombie_told),
    "an overtaken attempt's token was released": ("zombie", zombie_released),
    "nothing but its time shows whose it was": ("zombie", zombie_released_alike),
    "other text was told": ("differs", lambda h: spans(h, (1, 2, "A cat"), (3, 5, " went for it"))),
    "other text was released": ("differs", lambda h: h.of("responses", "release")[0].update(text=["A cat"])),
    "another end was told": ("differs", lambda h: setattr(h.answers[0], "code", "cancelled")),
    "another place of the end was told": ("differs", lambda h: setattr(h.answers[0], "terminal_sequence", 7)),
    "another end was written": ("differs", lambda h: h.of("responses", "terminal")[0].update(code="cancelled")),
    "told of no response": (
        "differs",
        lambda h: h.answers.append(Answer(request="q", how="sse", tenant="d", code="x")),
    ),
    "an engine left alone says something else": ("differs", lambda h: h.said["r"].__setitem__(4, " home")),
    "an engine left alone says more": ("lost", lambda h: h.said["r"].append(" all")),
    "more billed than counts": ("billed", lambda h: h.of("usage", "usage")[0].update(output_tokens=6)),
    "another ending billed": ("billed", lambda h: h.of("usage", "usage")[0].update(ending="cancelled")),
    "not charged": ("billed", lambda h: h.of("usage", "usage")[0].update(billable=False)),
    "its prompt not billed": ("billed", lambda h: h.of("usage", "usage")[0].update(uncached_input_tokens=0)),
    "fewer released": ("billed", lambda h: h.of("usage", "usage")[0].update(released_tokens=4)),
    "the table has other figures": ("billed", lambda h: h.bills[0].update(output_tokens=4)),
    "the table has what was never written": ("billed", lambda h: h.bills.append({**h.bills[0], "usage_id": "x/0"})),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_may_not_be_is_found(what: str) -> None:
    kind, break_it = BROKEN[what]
    history = whole()
    assert history.verdict().violations == []
    break_it(history)
    assert kind in history.kinds()


def test_a_violation_names_its_response() -> None:
    history = whole("healthy")
    whole("broken", history).answers[-1].spans.pop()
    assert {violation.about for violation in history.verdict().violations} == {"broken"}


def test_what_is_refused_by_a_gateway_is_counted_and_is_no_violation() -> None:
    history = whole()
    history.answers.append(Answer(request="q", how="sse", tenant="demo", refused="unavailable"))
    verdict = history.verdict()
    assert (verdict.violations, verdict.refused["unavailable"]) == ([], 1)


def test_what_an_overtaken_attempt_says_late_is_counted() -> None:
    assert whole().verdict().counts["late_tokens_of_overtaken_attempts"] == 1


def test_a_refusal_costs_nothing() -> None:
    history = History()
    history.write("requests", type="request", response_id="no")
    history.write("generated", type="ending", response_id="no", code="rate_limited_tokens", written_by="admission")
    history.end("no", 0, attempts=0, code="rate_limited_tokens")
    history.saw("no", [], code="rate_limited_tokens")
    assert history.verdict().violations == []
    history.of("usage")[0]["billable"] = True
    assert history.kinds() == {"billed"}


def test_what_completed_and_was_halted_at_its_end_is_told_as_halted() -> None:
    history = whole()
    history.drop("responses", "release")
    for record in (history.of("responses", "terminal")[0], history.of("usage")[0], history.bills[0]):
        record["code" if "code" in record else "ending"] = "safety_halted"
    history.of("responses", "terminal")[0]["sequence_number"] = 5
    history.of("usage")[0]["released_tokens"] = history.bills[0]["released_tokens"] = 4
    answer = history.answers[0]
    answer.spans.pop()
    answer.code, answer.terminal_sequence = "safety_halted", 5
    assert history.verdict().violations == []


def test_what_is_charged_is_what_the_catalogue_of_endings_says() -> None:
    assert {code.value for code, rule in ENDINGS.items() if rule.billed} == CHARGED


@st.composite
def healthy(draw: st.DrawFn) -> History:
    """Responses that are cut anywhere, any number of times, whose overtaken workers go on, told in any pieces."""
    history = History()
    for number in range(draw(st.integers(1, 3))):
        response_id = f"r{number}"
        texts = draw(st.lists(st.text("ab 🦊", max_size=3), min_size=1, max_size=8))
        history.begin(response_id, texts)
        cuts = sorted(draw(st.sets(st.integers(0, len(texts) - 1), max_size=3)) | {len(texts)})
        emitted, at = [], 0
        for attempt, cut in enumerate(cuts):
            history.fence(response_id, f"{response_id}-{attempt}", "takeover" if at else "fresh")
            if attempt and draw(st.booleans()):
                history.frame(response_id, f"{response_id}-{attempt - 1}", at + 1, ["late"])
            while at < cut:
                step = draw(st.integers(1, cut - at))
                finish = "stop" if at + step == len(texts) else ""
                at_us = history.frame(response_id, f"{response_id}-{attempt}", at + 1, texts[at : at + step], finish)
                emitted += [at_us] * step
                for _ in range(draw(st.integers(1, 2))):
                    history.release(response_id, at + 1, texts[at : at + step], at_us)
                at += step
        history.end(response_id, len(texts), attempts=len(cuts))
        begin, told = 0, []
        while begin < len(texts):
            end = draw(st.integers(begin + 1, len(texts)))
            at_us = draw(st.sampled_from([0, emitted[end - 1]]))
            told.append(Span(begin + 1, end, "".join(texts[begin:end]), at_us, 1))
            begin = end
        history.saw(response_id, told)
    return history


@given(healthy())
def test_nothing_is_found_in_a_history_that_may_be(history: History) -> None:
    assert history.verdict().violations == []


@given(healthy(), st.data())
def test_a_piece_that_is_missing_or_told_again_is_found_wherever_it_was(history: History, data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from(history.answers))
    place = data.draw(st.integers(0, len(answer.spans) - 1))
    if data.draw(st.booleans()):
        answer.spans.insert(place, answer.spans[place])
        assert history.kinds() == {"doubled"}
    elif place < len(answer.spans) - 1:
        del answer.spans[place]
        assert "lost" in history.kinds()
