"""The judge of histories: each thing that may not be is found, whoever saw it, and nothing is that may be."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.endings import ENDINGS
from schemas.policy import OutputPolicy
from tests.history.bills import CHARGED
from tests.history.log import Logged
from tests.history.responses import NOTHING_DENIED
from tests.history.saw import Answer, Held, Job, Span
from tests.unit.history.lives import TINY, History, halted, job, moved, several, whole

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
    """Each complete."""
    asked_once_and_written_twice(history)
    history.answers[0].key = "k"
    history.answers[0].response_ids.insert(0, "other")


def nothing_of_it_was_released(history: History) -> None:
    history.drop("responses", "release", 4)


def complete_and_cut(history: History) -> None:
    """Told as complete one token too early, by all alike."""
    history.drop("responses", "release")
    history.of("responses", "terminal")[0]["sequence_number"] = 5
    history.bill(released_tokens=4)
    history.answers[0].spans.pop()
    history.answers[0].terminal_sequence = 5


def never_answered(history: History) -> None:
    history.answers.append(
        Answer(request="q", how="sse", tenant="demo", key="k", left=["unavailable"] * 9, ended_at_ms=9)
    )


def in_a_lane_alone(history: History) -> None:
    history.begin("x", ["A"])
    del history.records[-3:-1]


def halted_for_nothing(history: History) -> None:
    """Its tenant denies nothing, and it is cut after its first piece, by all alike."""
    history.drop("responses", "release", 3)
    history.of("responses", "terminal")[0].update(
        code="safety_halted", sequence_number=3, finish_reasons=["content_filter"]
    )
    history.bill(ending="safety_halted", finish_reason="content_filter", released_tokens=2)
    answer = history.answers[0]
    del answer.spans[1:]
    answer.code, answer.terminal_sequence = "safety_halted", 3


def ended(history: History, code: str, *, billable: bool) -> None:
    """With all of its tokens, and so as nobody has caused."""
    frames = [number for number, each in enumerate(history.records) if each.value.get("type") == "frame"]
    history.of("generated", "frame")[-1]["finish"] = [""]
    ending = {"type": "ending", "response_id": "r", "attempt_id": None, "code": code, "written_by": "post-safety"}
    history.records.insert(frames[-1] + 1, Logged("generated", 0, 99, 2, ending))
    history.of("responses", "terminal")[0].update(code=code)
    history.bill(ending=code, billable=billable)
    if not billable:
        history.bills[0].update(charge_state="not_billable", cost_pico=0)
    history.answers[0].code = code


def asked_once_and_written_twice(history: History) -> None:
    """One client's question, under two ids, each answered and billed."""
    whole("other", history).answers.pop()
    of_one_question(history)


def of_one_question(history: History) -> None:
    for request in history.of("requests"):
        request["messages"][0]["content"][0]["text"] = history.answers[0].prompt


def routed_twice(history: History) -> None:
    lane = next(each for each in history.records if each.topic == "lane")
    history.records.append(lane._replace(partition=3, offset=77))


def in_another_partition(history: History, topic: str) -> None:
    """The last record of it stands in another partition."""
    place = max(number for number, each in enumerate(history.records) if each.topic == topic)
    history.records[place] = history.records[place]._replace(partition=1)


def answers_exchanged(history: History) -> None:
    """Two clients are told each other's whole answers, ids and all."""
    whole("other", history)
    mine, theirs = history.answers
    mine.response_ids, theirs.response_ids = theirs.response_ids, mine.response_ids
    mine.spans, theirs.spans = theirs.spans, mine.spans


def job_told(history: History, **changed: str) -> None:
    choice = job(history).of("results")[0]["response"]["body"]["choices"][0]
    for name, value in changed.items():
        (choice["message"] if name == "content" else choice)[name] = value


def job_failed(history: History) -> None:
    job(history).of("results")[0].update(response=None, error={"code": "engine_failed"})


def billed_again(history: History, response_id: str, choice: int) -> None:
    again = {"usage_id": f"{response_id}/{choice}", "response_id": response_id, "choice": choice}
    history.write("usage", **{**history.of("usage")[0], **again})
    history.bills.append({**history.bills[0], **again})


def another_tenant_pays(history: History) -> None:
    history.of("usage")[0].update(scope={"tenant_id": "guarded"})
    history.bills[0].update(tenant_id="guarded")


def held(history: History, *, deadline_ms: int, at_ms: int) -> None:
    history.held.append(Held(response_id="r", tenant="demo", deadline_ms=deadline_ms, at_ms=at_ms))


BROKEN: dict[str, tuple[str, Break]] = {
    "a client waits for the end": ("lost", lambda h: setattr(h.answers[0], "code", "")),
    "a token did not come": ("lost", lambda h: spans(h, (1, 2, "A fox"), (4, 5, " for it"))),
    "the last tokens did not come": ("lost", lambda h: h.answers[0].spans.pop()),
    "an accepted request is nowhere": ("lost", lambda h: h.saw("gone", [])),
    "a request has no end": ("lost", lambda h: h.ask("silent")),
    "no terminal": ("lost", lambda h: h.drop("responses", "terminal")),
    "nothing released": ("lost", nothing_of_it_was_released),
    "complete and cut": ("lost", complete_and_cut),
    "no usage": ("lost", lambda h: h.drop("usage", "usage")),
    "no row": ("lost", lambda h: h.bills.clear()),
    "a job without a result": ("lost", lambda h: h.jobs.append(Job(custom_id="j", tenant="demo"))),
    "a client that nobody answered": ("lost", never_answered),
    "a record in a lane alone": ("lost", in_a_lane_alone),
    "halted for nothing": ("lost", halted_for_nothing),
    "a job in a lane, without its result": ("lost", lambda h: job(h).drop("results", None)),
    "a token came twice": ("doubled", lambda h: spans(h, (1, 2, "A fox"), (2, 5, " fox went for it"))),
    "two terminals": ("doubled", lambda h: h.end("r", 4, attempts=2, code="cancelled")),
    "two responses": ("doubled", two_responses_for_one_key),
    "two responses, of which nobody was told the other": ("doubled", asked_once_and_written_twice),
    "two places of its lane": ("doubled", routed_twice),
    "two places of generated": ("doubled", lambda h: in_another_partition(h, "generated")),
    "two places of responses": ("doubled", lambda h: in_another_partition(h, "responses")),
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
    "an engine left alone says something else": ("differs", lambda h: h.said["r"][0].__setitem__(4, " home")),
    "an engine left alone says more": ("lost", lambda h: h.said["r"][0].append(" all")),
    "the answer to another question": ("differs", answers_exchanged),
    "the answer to another tenant": ("differs", lambda h: setattr(h.answers[0], "tenant", "guarded")),
    "a request of nobody": ("differs", lambda h: whole("other", h).answers.pop()),
    "opened for nobody": ("differs", lambda h: h.drop("requests", "request")),
    "opened for another": ("differs", lambda h: h.of("generated", "opened")[0]["scope"].update(tenant_id="guarded")),
    "another model in its lane": ("differs", lambda h: h.of("lane")[0].update(model="huge")),
    "another model told": ("differs", lambda h: h.of("responses", "terminal")[0].update(model="huge")),
    "cancelled by nobody": ("differs", lambda h: ended(h, "cancelled", billable=True)),
    "failed for nothing": ("differs", lambda h: ended(h, "engine_failed", billable=False)),
    "another model was told": ("differs", lambda h: setattr(h.answers[0], "model", "huge")),
    "another usage was told": ("differs", lambda h: setattr(h.answers[0], "usage", {"completion_tokens": 6})),
    "another choice was told": (
        "differs",
        lambda h: h.answers[0].spans.append(h.answers[0].spans.pop()._replace(choice=1)),
    ),
    "another choice was released": ("differs", lambda h: h.of("responses", "release")[0].update(choice=[1])),
    "another text in a result": ("differs", lambda h: job_told(h, content="nothing of it")),
    "another finish in a result": ("differs", lambda h: job_told(h, finish_reason="length")),
    "an error as the result of an answer": ("differs", job_failed),
    "the result of another job": (
        "differs",
        lambda h: job(h).of("generated", "opened")[-1]["reply_to"].update(custom_id="j"),
    ),
    "a result of no response": ("differs", lambda h: job(h).of("results")[0].update(id="nobody")),
    "a result of nobody's job": ("differs", lambda h: job(h).jobs.clear()),
    "a second usage event, of a choice that it has not": ("billed", lambda h: billed_again(h, "r", 1)),
    "a bill for a response that nobody asked": ("billed", lambda h: billed_again(h, "ghost", 0)),
    "another model billed": ("billed", lambda h: h.bill(model="huge")),
    "another time billed": ("billed", lambda h: h.bill(accepted_at_ms=7)),
    "another tenant billed": ("billed", another_tenant_pays),
    "the table has another tenant": ("billed", lambda h: h.bills[0].update(tenant_id="guarded")),
    "too dear": ("billed", lambda h: h.bills[0].update(cost_pico=10**15)),
    "not priced": ("billed", lambda h: h.bills[0].update(charge_state="suspense", cost_pico=0)),
    "priced as if it waited": ("billed", lambda h: h.bills[0].update(charge_state="suspense")),
    "all of its prompt billed as cached": ("billed", lambda h: h.bill(uncached_input_tokens=0, cached_input_tokens=5)),
    "another usage told": ("billed", lambda h: h.of("responses", "terminal")[0]["usage"].update(completion_tokens=6)),
    "another prompt told": ("billed", lambda h: h.of("responses", "terminal")[0]["usage"].update(prompt_tokens=6)),
    "held beyond its deadline": ("held", lambda h: held(h, deadline_ms=0, at_ms=90_001)),
    "held though it is settled": ("held", lambda h: held(h, deadline_ms=10**6, at_ms=60_000)),
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


def test_one_that_was_moved_is_told_and_billed_once_by_the_model_that_answered() -> None:
    counts = moved().verdict().counts
    assert moved().verdict().violations == []
    assert (counts["moved_answers"], counts["moved_to_another_model"], counts["answers_by_another_model"]) == (1, 1, 1)


MOVED_AND_BROKEN: dict[str, tuple[str, Break]] = {
    "its former worker was heard": (
        "zombie",
        lambda h: h.release("m", 1, ["A"], h.of("generated", "frame")[0]["emitted_at_us"]),
    ),
    "it was put into two lanes": ("doubled", lambda h: h.write("lane", **{**h.of("lane")[1], "lane": "interactive"})),
    "it was moved to where nobody may answer it": (
        "differs",
        lambda h: h.of("generated", "opened")[0].update(further=["x"]),
    ),
    "it was put elsewhere, and nobody had moved it": ("differs", lambda h: h.drop("generated", "ending")),
    "another than its lane says has begun it": (
        "differs",
        lambda h: h.of("generated", "fence")[1].update(model="huge"),
    ),
    "told as answered by the model that was asked": (
        "differs",
        lambda h: h.of("responses", "terminal")[0].update(model="big"),
    ),
    "told as if that had been asked for": ("differs", lambda h: h.of("responses", "terminal")[0].update(fallback=None)),
    "billed as the model that was asked": ("billed", lambda h: h.bill(model="big")),
    "billed in its former pool": ("billed", lambda h: h.bill(pool="large")),
    "billed by the prompt of the model that was asked": ("billed", lambda h: h.bill(uncached_input_tokens=5)),
    "an attempt billed that does not count": ("billed", lambda h: h.bill(attempts=2)),
    "the engine that answers says something else": ("differs", lambda h: h.said["m"][0].__setitem__(1, " hen")),
}


@pytest.mark.parametrize("what", MOVED_AND_BROKEN)
def test_of_what_was_moved_what_may_not_be_is_found(what: str) -> None:
    kind, break_it = MOVED_AND_BROKEN[what]
    history = moved()
    break_it(history)
    assert kind in history.kinds()


def test_whom_no_other_model_may_answer_is_answered_by_none() -> None:
    history = moved()
    history.own_model_only = ["guarded"]
    assert history.verdict().violations == []
    history.own_model_only = ["demo"]
    assert history.kinds() == {"differs"}


def test_what_is_embedded_is_billed_by_its_prompt_alone() -> None:
    history = whole(endpoint="embeddings")
    assert "billed" in history.kinds()
    history.bill(endpoint="embeddings", output_tokens=0, released_tokens=0)
    history.bills[0]["cost_pico"] = 340_000
    told = {**history.of("responses", "terminal")[0]["usage"], "completion_tokens": 0}
    history.of("responses", "terminal")[0]["usage"] = history.answers[0].usage = told
    assert history.verdict().violations == []


def test_what_is_told_of_an_hour_is_the_sum_of_its_events() -> None:
    history = job(whole())
    names = ("uncached_input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "released_tokens")
    figures = {name: sum(bill[name] for bill in history.bills) for name in (*names, "cost_pico")}
    hour = {"tenant_id": "demo", "model": "tiny", "hour_ms": 0, "requests": len(history.bills), **figures}
    history.hours = [hour]
    assert history.verdict().violations == []
    history.hours = [{**hour, "requests": 1, **dict.fromkeys(figures, 0)}, {**hour, "requests": hour["requests"] - 1}]
    assert history.verdict().violations == [], "of its projects and currencies together"
    for name in ("requests", *figures):
        history.hours = [{**hour, name: hour[name] + 1}]
        assert history.kinds() == {"billed"}, name
    history.hours = []
    assert history.kinds() == {"billed"}


def test_a_log_is_judged_alone_where_nobody_wrote_down_what_clients_saw() -> None:
    history = whole()
    assert history.verdict(of_log_alone=True).violations == []
    ended(history, "cancelled", billable=True)
    violations = history.verdict(of_log_alone=True).violations
    assert [each.what for each in violations] == ["ended cancelled, which nobody caused"]


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
    history, code = History(), "prompt_refused"
    history.ask("no")
    history.write(
        "generated", type="ending", response_id="no", code=code, written_by="admission", scope={"tenant_id": "demo"},
        reply_to={"partition": 0}, **TINY,
    )  # fmt: skip
    history.end("no", 0, attempts=0, code=code)
    history.saw("no", [], code=code)
    assert history.verdict().violations == []
    history.of("usage")[0]["billable"] = True
    assert history.kinds() == {"billed"}


def test_what_its_tenant_denied_is_halted_before_it() -> None:
    assert halted().verdict().violations == []
    further = halted()
    further.of("responses", "release")[0].update(text=["A fox went"], text_ends=[[1, 5, 10]])
    further.of("responses", "terminal")[0]["sequence_number"] = 4
    assert "differs" in further.kinds()
    earlier = halted()
    earlier.of("responses", "release")[0].update(text=["A"], text_ends=[[1]])
    earlier.of("responses", "terminal")[0]["sequence_number"] = 2
    earlier.bill(released_tokens=1)
    earlier.answers[0].spans[:] = [Span(1, 1, "A", 0, 1)]
    earlier.answers[0].terminal_sequence = 2
    assert [violation.what for violation in earlier.verdict().violations] == [
        "it was released up to token 1, and 2 come before the phrase"
    ]
    unknown = halted()
    unknown.drop("policies", "output_policy")
    assert unknown.kinds() == {"lost"}


def test_who_asks_for_two_answers_is_told_both() -> None:
    assert several().verdict().violations == []
    exchanged = several()
    exchanged.said["n"].reverse()
    assert exchanged.kinds() == {"differs"}
    one = several()
    one.said["n"].pop()
    assert one.kinds() == {"differs"}


def test_the_result_of_a_job_is_what_was_released_of_it() -> None:
    verdict = job().verdict()
    assert (verdict.violations, verdict.counts["jobs"], verdict.endings["completed"]) == ([], 1, 1)


def test_a_job_that_nobody_acknowledged_may_have_a_result_or_none() -> None:
    for history in (whole(), job()):
        history.jobs[:] = [Job(custom_id="job-1", tenant="demo", failed="timeout")]
        verdict = history.verdict()
        assert (verdict.violations, verdict.counts["jobs"], verdict.refused["job: timeout"]) == ([], 0, 1)


def test_what_a_worker_gave_away_may_stand_in_another_place_of_its_lane() -> None:
    history = whole()
    lane = next(each for each in history.records if each.topic == "lane")
    history.records.append(lane._replace(partition=3, offset=77, value={**lane.value, "spills": 1}))
    assert history.verdict().violations == []


def test_what_its_client_cancels_may_end_so() -> None:
    history = whole()
    ended(history, "cancelled", billable=True)
    history.answers[0].was_cancelled = True
    assert history.verdict().violations == []
    history.answers[0].was_cancelled = False
    assert history.verdict({"completed", "cancelled"}).violations == []
    assert history.verdict(None).violations == []


def test_what_a_gateway_refused_before_anybody_knew_of_it_may_end_cancelled() -> None:
    history = whole()
    ended(history, "cancelled", billable=True)
    answer = history.answers[0]
    history.answers[0] = Answer(
        request=answer.request, how="sse", tenant="demo", prompt=answer.prompt, refused="unavailable"
    )
    assert history.verdict().violations == []


def test_phrases_are_named_by_the_digest_that_admission_writes() -> None:
    assert OutputPolicy.of("any", []).digest == NOTHING_DENIED


def test_who_has_a_key_may_have_several_responses_of_which_one_is_complete() -> None:
    history = whole()
    ended(history, "unavailable", billable=False)
    first = whole("other", history).answers.pop(0)
    answer = history.answers[0]
    answer.prompt, answer.key = first.prompt, "k"
    answer.response_ids.insert(0, "r")
    of_one_question(history)
    assert history.verdict().violations == []
    answer.key = ""
    assert history.kinds() == {"doubled"}


@pytest.mark.parametrize(
    ("at_ms", "memory_lost_at_ms"), [(20_000, 0), (60_000, 10)], ids=["soon", "Redis forgot that it was settled"]
)
def test_quota_may_hold_what_is_within_its_bound(at_ms: int, memory_lost_at_ms: int) -> None:
    history = whole()
    held(history, deadline_ms=100_000, at_ms=at_ms)
    history.memory_lost_at_ms = memory_lost_at_ms
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
