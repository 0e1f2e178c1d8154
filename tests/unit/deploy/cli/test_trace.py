"""`sluice trace` on a log in memory: what it tells of a response, and what it keeps to itself."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.cli import trace
from deploy.cli.app import CommandError
from deploy.cli.log_search import LogSearch
from deploy.cli.timeline import Step, Timeline
from schemas.base import Record, Scope
from schemas.endings import EndingCode
from schemas.fallback import Fallback
from schemas.generated import Ending, Fence, Frame, Opened
from schemas.request import AdmittedRequest, Lane, Message, ReplyTo, Request, Sampling, TextPart
from schemas.responses import Release, Started, Terminal
from schemas.usage import ComputeRecord, DeliveredCount, UsageEvent
from streams.ids import ResponseIds, parse_response_id
from streams.log.memory import MemoryLog
from streams.settings import Settings
from streams.topics import Topic

PROMPT, ANSWER = "the prompt that nobody prints", "the answer that nobody prints"
SCOPE = Scope(tenant_id="acme", traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
IDS = ResponseIds("local", [b"s" * 32])
PARTITION, HOME, LANE_PARTITION = 3, 2, 5
ENDS = [len(ANSWER)]


class Story:
    """Writes the records of responses, each at its time after the first one was accepted."""

    def __init__(self, settings: Settings) -> None:
        self.topics = settings.topics
        self.response_id = IDS.mint(PARTITION)
        self.neighbour_id = IDS.mint(PARTITION)
        self.accepted_ms = parse_response_id(self.response_id).minted_at_ms or 0
        self.now_ms = self.accepted_ms
        self.fallback: Fallback | None = None
        self.spilled: dict[str, int] = {}
        self.log = MemoryLog(lambda: self.now_ms)
        for topic in self.topics.all([]):
            self.log.create_topic(topic.name, topic.partitions)

    def at(self, ms: int, topic: Topic, record: Record, partition: int, *, key: str | None = "") -> None:
        self.now_ms = self.accepted_ms + ms
        key = self.response_id if key == "" else key
        self.log.append(topic.name, record.encode(), key=key, partition=partition)

    def request(self) -> Request:
        return Request(
            response_id=self.response_id, scope=SCOPE, model="default", reply_to=ReplyTo(partition=PARTITION),
            accepted_at_ms=self.accepted_ms, deadline_ms=self.accepted_ms + 60_000,
            messages=[Message(role="user", content=[TextPart(text=PROMPT)])], stage_ms={"gateway": self.accepted_ms},
        )  # fmt: skip

    def opened(self) -> Opened:
        stages = {"gateway": 0, "admission": 4, "validation": 6, "quota": 7, "pre-safety": 7, "routing": 8}
        return Opened(
            response_id=self.response_id, scope=SCOPE, model="sluice-tiny", requested_model="default", pool="default",
            lane=Lane.STANDARD, lane_partition=LANE_PARTITION, prompt_tokens=3, max_tokens=64, reserved_tokens=67,
            reply_to=ReplyTo(partition=PARTITION), accepted_at_ms=self.accepted_ms,
            admitted_at_ms=self.accepted_ms + 9, deadline_ms=self.accepted_ms + 60_000, fallback=self.fallback,
            stage_ms={stage: self.accepted_ms + ms for stage, ms in stages.items()},
        )  # fmt: skip

    def work(self) -> AdmittedRequest:
        return AdmittedRequest(
            response_id=self.response_id, scope=SCOPE, model="sluice-tiny", requested_model="default", pool="default",
            lane=Lane.STANDARD, prompt_token_ids=[1, 5, 9], sampling=Sampling(), max_tokens=64,
            reply_to=ReplyTo(partition=PARTITION), accepted_at_ms=self.accepted_ms,
            admitted_at_ms=self.accepted_ms + 9, deadline_ms=self.accepted_ms + 60_000, generated_partition=HOME,
            opened_offset=0,
        )  # fmt: skip

    def fence(self, ms: int, worker_id: str = "worker-1") -> Fence:
        kind = "fresh" if worker_id == "worker-1" else "takeover"
        return Fence(
            response_id=self.response_id, scope=SCOPE, attempt_id=f"att_{worker_id}", worker_id=worker_id, kind=kind,
            stage_ms=self.spilled | {"taken": self.accepted_ms + ms - 2, "worker": self.accepted_ms + ms},
        )  # fmt: skip

    def frame(self, ms: int, first: int, *, finish: bool = False, worker_id: str = "worker-1") -> Frame:
        return Frame(
            worker_id=worker_id, emitted_at_us=(self.accepted_ms + ms) * 1_000, scopes=[SCOPE], scope=[0, 0],
            response_id=[self.neighbour_id, self.response_id], attempt_id=["att_n", f"att_{worker_id}"],
            choice=[0, 0], first_sequence=[first, first], kind=["content"] * 2, token_ids=[[11], [12]],
            text=[ANSWER] * 2, text_ends=[ENDS] * 2, logprobs=[None] * 2, finish=["", "stop" if finish else ""],
            cached_tokens=[0, 0],
        )  # fmt: skip

    def release(self, ms: int, first: int) -> Release:
        return Release(
            scopes=[SCOPE], scope=[0, 0], response_id=[self.neighbour_id, self.response_id], choice=[0, 0],
            first_sequence=[first] * 2, kind=["content"] * 2, text=[ANSWER] * 2, text_ends=[ENDS] * 2,
            emitted_at_us=[(self.accepted_ms + ms) * 1_000] * 2,
        )  # fmt: skip

    def is_admitted(self) -> None:
        topics = self.topics
        # Somebody else's prompt may hold the id.
        quoting = self.request().model_copy(update={"response_id": self.neighbour_id, "model": self.response_id})
        self.at(1, topics.requests, quoting, 6, key=self.neighbour_id)
        self.at(2, topics.requests, self.request(), 6)
        self.at(10, topics.generated, self.opened(), HOME)
        self.at(12, topics.lane("default", Lane.STANDARD), self.work(), LANE_PARTITION)
        self.at(13, topics.responses, self._started(), PARTITION)

    def begins(self) -> None:
        self.at(20, self.topics.generated, self.fence(18), HOME)
        self.at(41, self.topics.generated, self.frame(40, 1), HOME, key="worker-1")
        self.at(44, self.topics.responses, self.release(40, 1), PARTITION, key=None)

    def ends(self) -> None:
        topics = self.topics
        self.at(61, topics.generated, self.frame(60, 2, finish=True), HOME, key="worker-1")
        self.at(64, topics.responses, self.release(60, 2), PARTITION, key=None)
        terminal = Terminal(
            response_id=self.response_id, scope=SCOPE, sequence_number=3, code=EndingCode.COMPLETED,
            ended_at_ms=self.accepted_ms + 61,
        )  # fmt: skip
        self.at(65, topics.responses, terminal, PARTITION)
        self.at(66, topics.usage, self._bill(), 1)
        compute = ComputeRecord(
            response_id=self.response_id, scope=SCOPE, attempt_id="att_worker-1", worker_id="worker-1", pool="default",
            model="sluice-tiny", prompt_tokens=3, cached_tokens=0, generated_tokens=2, engine_ms=42,
            outcome="completed",
        )  # fmt: skip
        self.at(67, topics.usage, compute, 1)
        delivered = DeliveredCount(
            response_id=self.response_id, scope=SCOPE, gateway_id="gateway-1", delivered_tokens=2,
            stage_ms={"gateway": self.accepted_ms + 400, "first_sent": self.accepted_ms + 46,
                      "sent": self.accepted_ms + 68},
        )  # fmt: skip
        self.at(402, topics.usage, delivered, 1)

    def _started(self) -> Started:
        return Started(
            response_id=self.response_id, scope=SCOPE, model="sluice-tiny", requested_model="default", lane="standard",
            pool="default", prompt_tokens=3, accepted_at_ms=self.accepted_ms, deadline_ms=self.accepted_ms + 60_000,
        )  # fmt: skip

    def _bill(self) -> UsageEvent:
        stages = {"gateway": 0, "validation": 6, "quota": 7, "pre-safety": 7, "routing": 8, "worker": 18,
                  "prefill": 40, "decode": 60, "post-safety": 61}  # fmt: skip
        return UsageEvent(
            response_id=self.response_id, scope=SCOPE, usage_id=f"{self.response_id}/0", choice=0,
            endpoint="chat.completions", model="sluice-tiny", requested_model="default", pool="default",
            lane="standard", worker_id="worker-1", attempts=1, ending=EndingCode.COMPLETED, finish_reason="stop",
            billable=True, accepted_at_ms=self.accepted_ms, first_token_at_ms=self.accepted_ms + 41,
            ended_at_ms=self.accepted_ms + 61, uncached_input_tokens=3, cached_input_tokens=0, output_tokens=2,
            reasoning_tokens=0, released_tokens=2, reserved_tokens=67,
            stage_ms={stage: self.accepted_ms + ms for stage, ms in stages.items()},
        )  # fmt: skip

    def told(
        self, *, response_id: str = "", later_ms: int = 5_000, timeout_s: float = 10
    ) -> tuple[Timeline, list[str]]:
        now_ms = self.now_ms + later_ms
        search = LogSearch(
            self.log.consumer(None, "trace"), self.topics, now_ms=now_ms, since_ms=now_ms - 3_600_000,
            request_timeout_ms=60_000, timeout_s=timeout_s,
        )  # fmt: skip
        return search.find(parse_response_id(response_id or self.response_id)), search.notes

    def shown(self, steps: Sequence[Step]) -> list[tuple[int, str, str, str]]:
        return [(step.at_ms - self.accepted_ms, step.what, step.by, step.where) for step in steps]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLUICE_POOLS", '[{"name": "default", "engine": "simulated"}]')
    return Settings()


@pytest.fixture
def story(settings: Settings) -> Story:
    return Story(settings)


def test_that_a_smaller_model_answers_is_told(story: Story) -> None:
    story.fallback = Fallback(asked="sluice-small", reason="overloaded")
    story.is_admitted()
    told, _ = story.told()
    admitted = "admitted for sluice-tiny, in the place of sluice-small (overloaded)"
    assert (9, admitted, "admission", "") in story.shown(told.steps())


def test_that_a_worker_gave_it_to_another_is_told(story: Story) -> None:
    story.spilled = {"spilled": story.accepted_ms + 14}
    story.is_admitted()
    story.begins()
    told, _ = story.told()
    steps = [step.what for step in told.steps()]
    given = steps.index("given to another worker of its pool, before anybody had begun it")
    assert steps.index("put into its lane (standard)") < given < steps.index("read from its lane")


def test_every_step_of_an_answer_is_told_with_its_place_in_the_log(story: Story) -> None:
    story.is_admitted()
    story.begins()
    story.ends()
    told, notes = story.told()
    assert (told.state, told.attempts, told.tokens, notes) == ("completed", 1, 2, [])
    assert story.shown(told.steps()) == [
        (0, "accepted", "gateway", ""),
        (2, "request stored", "log", "local.requests-6@1"),
        (4, "read by admission", "admission", ""),
        (6, "validation done", "admission", ""),
        (7, "quota done", "admission", ""),
        (7, "pre-safety done", "admission", ""),
        (8, "routing done", "admission", ""),
        (9, "admitted", "admission", ""),
        (10, "opened", "log", "local.generated-2@0"),
        (12, "put into its lane (standard)", "admission", "local.inference.default.standard-5@0"),
        (13, "its client may know that it was admitted", "log", "local.responses-3@0"),
        (16, "read from its lane", "worker-1", ""),
        (18, "attempt 1 begun (fresh)", "worker-1", ""),
        (20, "fence stored", "log", "local.generated-2@1"),
        (40, "first token generated", "worker-1", ""),
        (41, "first token stored", "log", "local.generated-2@2"),
        (44, "first text released", "log", "local.responses-3@1"),
        (46, "first text on its way to a viewer", "gateway-1", ""),
        (60, "last token generated", "worker-1", ""),
        (61, "last token stored: 2 in 2 frames", "log", "local.generated-2@3"),
        (64, "newest text released: 2 tokens in 2 records", "log", "local.responses-3@2"),
        (65, "terminal stored: completed", "log", "local.responses-3@3"),
        (66, "bill stored: 2 tokens", "log", "local.usage-1@0"),
        (67, "attempt accounted: completed, 42 ms in the engine", "log", "local.usage-1@1"),
        (68, "last viewer served", "gateway-1", ""),
        (402, "delivered tokens counted: 2", "log", "local.usage-1@2"),
    ]


def test_what_runs_is_told_as_far_as_it_has_come(story: Story) -> None:
    story.at(2, story.topics.requests, story.request(), 6)
    told, _ = story.told(later_ms=1)
    assert (told.state, [step.what for step in told.steps()]) == (
        "waiting for admission", ["accepted", "request stored"]
    )  # fmt: skip
    story.is_admitted()
    assert story.told(later_ms=1)[0].state == "waiting for a worker"
    story.begins()
    told, _ = story.told(later_ms=1)
    assert told.state == "running"
    assert told.steps()[-1].what == "first text released"


def test_a_second_attempt_is_told_apart(story: Story) -> None:
    story.is_admitted()
    story.begins()
    story.at(4_000, story.topics.generated, story.fence(3_990, "worker-2"), HOME)
    ending = Ending(
        response_id=story.response_id, scope=SCOPE, code=EndingCode.GENERATION_INTERRUPTED, written_by="worker",
        attempt_id="att_worker-2", reply_to=ReplyTo(partition=PARTITION), accepted_at_ms=story.accepted_ms,
    )  # fmt: skip
    story.at(4_001, story.topics.generated, ending, HOME)
    told, _ = story.told()
    assert [step.what for step in told.steps()][-4:] == [
        "read from its lane", "attempt 2 begun (takeover)", "fence stored",
        "ending stored: generation_interrupted (by worker)",
    ]  # fmt: skip


def test_that_it_enters_an_engine_late_or_leaves_it_is_told_of_its_attempt(story: Story) -> None:
    story.is_admitted()
    story.at(20, story.topics.generated, story.fence(18), HOME)
    for at_ms, losses in ((3_990, 1), (4_990, 2), (5_990, 1)):
        fence = story.fence(at_ms, "worker-2").model_copy(update={"losses": losses})
        story.at(at_ms + 10, story.topics.generated, fence, HOME)
    told, _ = story.told(later_ms=7_000)
    assert told.attempts == 2
    assert [step.what for step in told.steps()][-5:] == [
        "fence stored", "attempt 2 enters the engine", "fence stored again", "attempt 2 leaves the engine",
        "fence stored again",
    ]  # fmt: skip


@pytest.mark.parametrize("records", [1, 2])
def test_calls_of_tools_are_counted_and_neither_name_nor_arguments_are_told(story: Story, records: int) -> None:
    story.is_admitted()
    story.at(20, story.topics.generated, story.fence(18), HOME)
    kinds = ["tool_name", "tool_arguments"]
    for record, kind in enumerate(kinds[:records]):
        of_tools = {"kind": [kind, kind], "call": [7, record]}
        frame, release = story.frame(40, record + 1), story.release(40, record + 1)
        story.at(41 + record, story.topics.generated, frame.model_copy(update=of_tools), HOME, key="worker-1")
        story.at(44 + record, story.topics.responses, release.model_copy(update=of_tools), PARTITION, key=None)
    told = [step.what for step in story.told()[0].steps()]
    assert {
        1: {"first token stored, 1 tool call", "first text released, 1 tool call"},
        2: {
            "first token stored", "newest token stored: 2 in 2 frames, 2 tool calls",
            "newest text released: 2 tokens in 2 records, 2 tool calls",
        },
    }[records] <= {*told}  # fmt: skip
    assert not any(ANSWER in what for what in told)


def test_a_refusal_is_told(story: Story) -> None:
    story.at(2, story.topics.requests, story.request(), 6)
    ending = Ending(
        response_id=story.response_id, scope=SCOPE, code=EndingCode.RATE_LIMITED_TOKENS, written_by="admission",
        reply_to=ReplyTo(partition=PARTITION), accepted_at_ms=story.accepted_ms,
        stage_ms={"gateway": story.accepted_ms, "validation": story.accepted_ms + 5},
    )  # fmt: skip
    story.at(7, story.topics.generated, ending, 4)
    terminal = Terminal(
        response_id=story.response_id, scope=SCOPE, sequence_number=1, code=EndingCode.RATE_LIMITED_TOKENS,
        ended_at_ms=story.accepted_ms + 7,
    )  # fmt: skip
    story.at(8, story.topics.responses, terminal, PARTITION)
    told, _ = story.told()
    assert told.state == "rate_limited_tokens"
    assert [step.what for step in told.steps()] == [
        "accepted", "request stored", "validation done", "refused: rate_limited_tokens",
        "terminal stored: rate_limited_tokens",
    ]  # fmt: skip


def test_where_the_log_has_aged_out_the_bill_tells_the_stages(story: Story) -> None:
    story.is_admitted()
    story.begins()
    story.ends()
    aged = Story.__new__(Story)
    aged.__dict__.update(story.__dict__)
    aged.log = MemoryLog(lambda: aged.now_ms)
    for topic in story.topics.all([]):
        aged.log.create_topic(topic.name, topic.partitions)
    aged.at(66, story.topics.usage, story._bill(), 1)
    told, _ = aged.told(later_ms=40 * 3_600_000)
    assert told.state == "completed"
    assert ("decode done", "worker-1") in [(step.what, step.by) for step in told.steps()]


def test_nothing_is_told_of_what_nobody_was_given(story: Story) -> None:
    story.is_admitted()
    told, notes = story.told(response_id=story.neighbour_id.replace("-3_", "-4_"))
    assert (len(told), notes) == (0, [])


def test_a_search_ends_at_its_deadline_and_says_what_it_did_not_read(story: Story) -> None:
    story.is_admitted()
    told, notes = story.told(timeout_s=0)
    assert len(told) == 0
    assert "local.requests was not read to the end within 0 s" in notes


def test_a_job_whose_id_tells_no_time_is_looked_for_as_far_back_as_asked(story: Story) -> None:
    story.response_id = IDS.derive(64, "acme", "intake.batch", "job-1", at_ms=story.accepted_ms)
    opened = story.opened().model_copy(
        update={"reply_to": ReplyTo(partition=PARTITION, results_topic="local.results.acme", custom_id="job-1")}
    )
    story.at(10, story.topics.generated, opened, HOME)
    told, _ = story.told()
    assert next((step.what, step.by) for step in told.steps()) == ("accepted", "intake")
    assert len(story.told(later_ms=2 * 3_600_000)[0]) == 0


# The command


@pytest.fixture
def on_the_log(story: Story, monkeypatch: pytest.MonkeyPatch) -> Story:
    monkeypatch.setattr(trace, "KafkaConsumer", lambda *_: story.log.consumer(None, "trace"))
    return story


def test_a_person_sees_a_line_per_step_and_neither_prompt_nor_answer(
    on_the_log: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = on_the_log
    story.is_admitted()
    story.begins()
    story.ends()
    trace.trace(story.response_id, data=tmp_path)
    trace.trace(story.response_id, data=tmp_path, as_json=True)
    printed = capsys.readouterr().out
    table, _, rest = printed.partition("\n{")
    assert PROMPT not in printed
    assert ANSWER not in printed
    assert story.response_id in table
    assert "local.generated-2@2" in table
    bars = {line.split("│")[3].strip(): line.split("│")[6].rstrip() for line in table.splitlines() if "│" in line}
    assert len(bars["last viewer served"]) == 1 + trace.BAR_CHARS, "what is written for the books takes no room"
    assert bars["delivered tokens counted: 2"] == ""
    shown = json.loads("{" + rest)
    assert (shown["state"], shown["lane"], shown["tokens"]) == ("completed", "standard", 2)
    assert shown["steps"][1] == {
        "at_ms": story.accepted_ms + 2, "since_accepted_ms": 2, "since_step_before_ms": 2, "what": "request stored",
        "by": "log", "where": "local.requests-6@1", "is_account": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("response_id", "why"),
    [
        ("resp_nonsense", "no response id"),
        ("resp_eu1-3_" + "0" * 32, "of region 'eu1'"),
        ("resp_local-99_" + "0" * 32, "no partition 99"),
        ("resp_local-3_ffffffffffff7" + "0" * 19, "yet to come"),
        ("resp_local-3_0000000000017" + "0" * 19, "nobody was given that id at 1970"),
        ("resp_local-3_0000000000015" + "0" * 19, "--hours"),
    ],
)
def test_what_is_no_id_or_of_nobody_is_told_in_words(
    on_the_log: Story, tmp_path: Path, response_id: str, why: str
) -> None:
    with pytest.raises(CommandError, match=why):
        trace.trace(response_id, data=tmp_path)
