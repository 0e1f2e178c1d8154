"""Each dialect is measured beside chats, its goals are its own, and what was lost is no rate."""

import json
import math

import pytest

from benchmarks.beside_litellm import _requests_per_s
from benchmarks.bursts import Seen
from benchmarks.clients import Answer
from benchmarks.dialects import ENCODER, FIRST_EVENT, LONG, MAX_TOKENS, TOKEN_GOAL_US, TOOL, add_encoders
from benchmarks.encoders import CASES
from benchmarks.figures import Report
from benchmarks.spoken import DIALECTS
from gpu_consumers.engines.simulated_structure import instance_of
from gpu_consumers.engines.simulated_text import Vocabulary
from streams.dialects.openai_chat import parse_chat_request


@pytest.fixture(scope="module")
def report() -> Report:
    report = Report("dialects", {})
    add_encoders(report, 3, 7)
    return report


def test_a_token_and_a_first_event_are_measured_of_every_case(report: Report) -> None:
    for name in CASES:
        for what in (ENCODER, FIRST_EVENT):
            assert math.isfinite(report.value(f"{what}, {name}"))
            assert report.value(f"{what}, {name}") > 0


def test_what_is_added_is_beside_chats_of_the_same_run_and_only_a_dialect_has_a_goal(report: Report) -> None:
    figures = {figure.name: figure for figure in report.figures}
    for name in CASES.keys() - {"chat"}:
        added = figures[f"{ENCODER} over chat, {name}"]
        assert added.value == pytest.approx(report.value(f"{ENCODER}, {name}") - report.value(f"{ENCODER}, chat"))
        assert added.goal == (TOKEN_GOAL_US if name in DIALECTS else None)
        assert figures[f"{ENCODER}, {name} / chat"].spread is not None
    assert f"{ENCODER} over chat, chat" not in figures


def test_long_streams_ask_for_what_a_gateway_takes() -> None:
    for long in LONG.values():
        if long.dialect == "chat":
            body = DIALECTS["chat"].body("tiny", "Hello!", 12) | dict(long.fields)
            assert parse_chat_request(body).choices == long.choices


def test_a_call_is_cut_off_by_the_bound_alone_as_a_text_is() -> None:
    arguments = json.dumps(instance_of(TOOL["function"]["parameters"]))
    assert len(Vocabulary().spell(arguments).token_ids) > MAX_TOKENS


def answer(asked_at_s: float, ended_at_s: float | None) -> Answer:
    return Answer(asked_at_s, first_token_at_s=asked_at_s, ended_at_s=ended_at_s, error="" if ended_at_s else "lost")


def test_requests_a_second_are_good_answers_over_the_time_of_their_bursts_alone() -> None:
    first, second = [answer(0.0, 1.0), answer(0.0, 2.0)], [answer(10.0, 11.0), answer(10.0, 12.0)]
    assert _requests_per_s(Seen([*first, *second]), 2) == 1.0
    assert _requests_per_s(Seen([answer(0.0, 2.0), answer(0.0, None)]), 2) == 0.5
