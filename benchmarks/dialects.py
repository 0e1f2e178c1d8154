"""What each dialect adds over Chat Completions: to a token in the gateway's CPU time, and to the first token.

First the gateway's encoders alone (`encoders.py`), which is exact. Then the whole stack, on one simulated engine:
requests one by one, the dialects in turn, for the first token; and long streams, in turn, for the CPU time of a token
in all processes: of each dialect, of text beside tools and of calls, and of probabilities and several choices.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks import encoders
from benchmarks.bursts import Load, Seen, SideBySide, Target, first_tokens_ms
from benchmarks.encoders import CASES, CHOICES, TOP_LOGPROBS
from benchmarks.figures import Report, percentile
from benchmarks.spoken import DIALECTS
from benchmarks.stacks import running_stack, stack_pids
from deploy.local.runner import simulated
from streams.garbage import collect_seldom

ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 5.0, "inter_token_ms": 10.0, "step_ms": 10.0,
    # So that the bound alone ends an answer, in dialects too that have no word for it.
    "min_output_tokens": 100_000, "max_output_tokens": 100_000,
}  # fmt: skip
STREAMS, MAX_TOKENS = 64, 1_000
FIRST_TOKEN_GOAL_MS = 0.2
TOKEN_GOAL_US = 1.0
TOOLS_GOAL = 1.05
"""CPU time of a token where there are tools over one where there are none, in all processes."""
SPREAD = 0.2
"""Of what is over chats. Runs of one code on a busy machine were 22 % apart."""
WARM_UPS, WARM_UP_TOKENS = 8, 200
ENCODER, FIRST_EVENT, FIRST_TOKEN = "encoder: CPU per token p50", "encoder: first event p50", "first token p50"
UNSTORED: Final = "responses, not stored"
"""What storing takes is the difference: chats are stored on request alone."""
EVERYTHING, GATEWAY = "CPU per token of everything", "CPU per token of gateway-1"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "note",
        # What satisfies it is longer than any answer here.
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "minLength": 4_000}},
            "required": ["text"],
        },
    },
}
USAGE = {"stream_options": {"include_usage": True}}
CALL_ID = "call_1"
AFTER_A_CALL = [
    {"role": "user", "content": "Take a note."},
    {
        "role": "assistant",
        "tool_calls": [{"id": CALL_ID, "type": "function", "function": {"name": "note", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": CALL_ID, "content": "Taken."},
]
"""What the simulated engine answers in text, tools or not."""


@dataclass(frozen=True, slots=True)
class Long:
    """What a long stream asks for: the dialect, and the fields beside a prompt, or in its place."""

    dialect: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    choices: int = 1


LONG = {
    "chat": Long("chat", USAGE),
    "completions": Long("completions", USAGE),
    "messages": Long("messages"),
    "responses": Long("responses"),
    "chat, tools": Long("chat", {**USAGE, "tools": [TOOL], "messages": AFTER_A_CALL}),
    "chat, a call": Long("chat", {**USAGE, "tools": [TOOL], "tool_choice": "required"}),
    f"chat, {TOP_LOGPROBS} logprobs": Long("chat", {**USAGE, "logprobs": True, "top_logprobs": TOP_LOGPROBS}),
    f"chat, {CHOICES} choices": Long("chat", {**USAGE, "n": CHOICES}, CHOICES),
}


def _add_over_chat(report: Report, what: str, names: Iterable[str], unit: str, goal: float) -> None:
    """What each of them has more than chats, where `what` stands in the report of each."""
    for name in names:
        if name != "chat":
            over = report.value(f"{what}, {name}") - report.value(f"{what}, chat")
            report.add(f"{what} over chat, {name}", over, unit, goal if name in DIALECTS else None)


def _add_ratios(report: Report, what: str, names: Iterable[str], goals: Mapping[str, float]) -> None:
    for name in names:
        if name != "chat":
            of, over = f"{what}, {name}", f"{what}, chat"
            report.add_ratio(f"{what}, {name} / chat", of, over, SPREAD, goal=goals.get(name))


def add_encoders(report: Report, turns: int, seed: int) -> None:
    measured = encoders.Turns(seed)
    for _ in range(turns):
        measured.turn()
    for what, costs_us in ((ENCODER, measured.token_us), (FIRST_EVENT, measured.first_event_us)):
        for name in CASES:
            report.add(f"{what}, {name}", percentile(costs_us[name], 0.5), "µs")
    _add_over_chat(report, ENCODER, CASES, "µs", TOKEN_GOAL_US)
    _add_over_chat(report, FIRST_EVENT, CASES, "µs", FIRST_TOKEN_GOAL_MS * 1_000)
    _add_ratios(report, ENCODER, CASES, {})


def _add_first_tokens(report: Report, ours: Target, requests: int, seed: int) -> int:
    """Returns how many answers were lost or wrong."""
    loads = {name: Load(ours, seed, 1, spoken=spoken, fields={}) for name, spoken in DIALECTS.items()}
    loads[UNSTORED] = Load(ours, seed, 1, spoken=DIALECTS["responses"], fields={"store": False})
    waits_ms: defaultdict[str, list[float]] = defaultdict(list)
    bad = 0
    for number in range(WARM_UPS + requests):
        for name, load in loads.items():
            answers = load.one_by_one(1)
            bad += sum(not answer.is_good for answer in answers)
            if number >= WARM_UPS:
                waits_ms[name] += first_tokens_ms(answers)
    for name in loads:
        report.add(f"{FIRST_TOKEN}, {name}", percentile(waits_ms[name], 0.5), "ms")
    _add_over_chat(report, FIRST_TOKEN, loads, "ms", FIRST_TOKEN_GOAL_MS)
    return bad


def _add_streams(report: Report, ours: Target, pids: Mapping[str, int], tokens: int, rounds: int, seed: int) -> int:
    """Returns how many answers were lost or wrong."""
    loads = {
        name: Load(ours, seed, tokens, spoken=DIALECTS[long.dialect], fields=long.fields) for name, long in LONG.items()
    }
    Load(ours, seed, WARM_UP_TOKENS).burst(STREAMS)  # or the first, which is what all are held against, pays for it
    # As many tokens at once of each.
    sizes = {loads[name]: STREAMS // long.choices for name, long in LONG.items()}
    streams = SideBySide(loads, dict.fromkeys(loads, pids))
    bad = 0
    for name, seen in streams.ask(lambda load: load.burst(sizes[load]), rounds).items():
        _add_costs(report, name, seen)
        bad += sum(not answer.is_good or answer.tokens != tokens * LONG[name].choices for answer in seen.answers)
    _add_ratios(report, EVERYTHING, loads, dict.fromkeys(("chat, tools", "chat, a call"), TOOLS_GOAL))
    _add_ratios(report, GATEWAY, loads, {})
    return bad


def _add_costs(report: Report, name: str, seen: Seen) -> None:
    tokens = sum(answer.tokens for answer in seen.answers if answer.is_good)
    servers_s = sum(cpu_s for process, cpu_s in seen.cpu_s.items() if process != "clients")
    for what, cpu_s in ((EVERYTHING, servers_s), (GATEWAY, seen.cpu_s["gateway-1"])):
        report.add(f"{what}, {name}", cpu_s * 1e6 / max(1, tokens), "µs")


def run(*, short: bool, seed: int) -> Report:
    turns, requests, tokens, rounds = (20, 10, 100, 1) if short else (300, 600, MAX_TOKENS, 3)
    setting = {"encoders' turns": turns, "requests": requests, "streams": STREAMS, "tokens": tokens, "rounds": rounds}
    report = Report("dialects", {**setting, "seed": seed, **ENGINE})
    collect_seldom()
    add_encoders(report, turns, seed)
    with running_stack(simulated(ENGINE, max_running=1_024)) as stack:
        ours = Target(stack.gateway_url, {"Authorization": f"Bearer {stack.api_key()}"})
        bad = _add_first_tokens(report, ours, requests, seed)
        bad += _add_streams(report, ours, stack_pids(stack), tokens, rounds, seed)
    report.add_lost("answers lost or wrong", bad)
    return report
