"""One filled-in example of every record, the input of the golden-bytes tests."""

from schemas.admission import Failed, Move
from schemas.alert import Alert
from schemas.base import Record, Scope
from schemas.batch import BatchJob, BatchResponse, BatchResult, JobCancel, LineCancel
from schemas.billed import Billed
from schemas.brownout import PoolLevel
from schemas.control import AttemptVoid, Cancel, Halt
from schemas.dead_letter import DeadLetter
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, Frame, Opened, Source
from schemas.parked import Parked
from schemas.policy import OutputPolicy
from schemas.price import PriceTold
from schemas.request import AdmittedRequest, Lane, Message, ReplyTo, Request, Sampling, TextPart
from schemas.responses import Release, Started, Terminal, TokenUsage
from schemas.spent import SpentTotal
from schemas.usage import ComputeRecord, DeliveredCount, Presence, UsageEvent
from schemas.verdict import Verdict
from schemas.worker import WorkerState

RESPONSE = "resp_local-3_018f3c2e9d7a7b4e8c1d2e3f4a5b6c7d"
ATTEMPT = "att_018f3c2e9d7a7b4e8c1d2e3f4a5b6c7e"
NOW = 1_790_000_000_000
SCOPE = Scope(
    tenant_id="acme", project_id="web", key_id="key-1", end_user="u-9f", policy_version=4,
    traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)  # fmt: skip
REPLY_TO = ReplyTo(partition=3)
SAMPLING = Sampling(max_tokens=64, temperature=0.5, stop=["END"])

EXAMPLES: list[Record] = [
    Request(
        response_id=RESPONSE, scope=SCOPE, model="default", sampling=SAMPLING, reply_to=REPLY_TO, accepted_at_ms=NOW,
        deadline_ms=NOW + 60_000, messages=[Message(role="user", content=[TextPart(text="Grüße 👋")])],
        stage_ms={"gateway": NOW},
    ),
    AdmittedRequest(
        response_id=RESPONSE, scope=SCOPE, model="sluice-tiny", requested_model="default", pool="default",
        lane=Lane.STANDARD, prompt_token_ids=[1, 5, 9], sampling=SAMPLING, max_tokens=64, reply_to=REPLY_TO,
        accepted_at_ms=NOW, admitted_at_ms=NOW + 3, deadline_ms=NOW + 60_000, generated_partition=2, opened_offset=41,
    ),
    Opened(
        response_id=RESPONSE, scope=SCOPE, model="sluice-tiny", requested_model="default", pool="default",
        lane=Lane.STANDARD, lane_partition=5, prompt_tokens=3, max_tokens=64, reserved_tokens=67, reply_to=REPLY_TO,
        accepted_at_ms=NOW, admitted_at_ms=NOW + 3, deadline_ms=NOW + 60_000, on_disconnect="cancel",
        output_policy=OutputPolicy.of("acme", ["make a bomb", "毒药"]).digest,
    ),
    OutputPolicy.of("acme", ["make a bomb", "毒药"]),
    Alert.raised(
        "budget_threshold", "month/tenant", "warning", "80 % of the budget are used", since_ms=NOW, told_at_ms=NOW + 5,
        tenant_id="acme", figures={"percent": 80, "currency": "USD"},
    ),
    PriceTold(
        price_id="sluice-tiny@0/tenant_id=acme", model="sluice-tiny", currency="USD", valid_from_ms=0,
        uncached_input_pico=100_000, cached_input_pico=20_000, output_pico=400_000, reasoning_pico=400_000,
        tenant_id="acme",
    ),
    SpentTotal(
        scope=Scope(tenant_id="acme", project_id=""), month="2026-09", currency="USD", partition=3, offset=977,
        log_id="cluster-1/topic-1", nano={"tenant": 1_234_567, "project:web": 1_234_567, "key:key-1": 1_234_567},
        told=["tenant/50/2000000"],
    ),
    Parked(
        owner="0f1e2d3c4b5a6978", opened_offset=41, ended_offset=977,
        opened=Opened(
            response_id=RESPONSE, scope=SCOPE, model="sluice-tiny", requested_model="default", pool="default",
            lane=Lane.BATCH, lane_partition=5, prompt_tokens=3, max_tokens=64, reserved_tokens=67, reply_to=REPLY_TO,
            accepted_at_ms=NOW, admitted_at_ms=NOW + 3, deadline_ms=NOW + 60_000,
        ),
    ),
    Move(
        response_id=RESPONSE, scope=SCOPE, move=1, generated_partition=2, begins_at=44, tried=["default"],
        failed=Failed(code=EndingCode.ENGINE_FAILED, message="The engine failed on this request."),
        opened=Opened(
            response_id=RESPONSE, scope=SCOPE, model="sluice-tiny", requested_model="default", pool="default",
            lane=Lane.STANDARD, lane_partition=5, prompt_tokens=3, max_tokens=64, reserved_tokens=67,
            reply_to=REPLY_TO, accepted_at_ms=NOW, admitted_at_ms=NOW + 3, deadline_ms=NOW + 60_000,
            further=["spare"], source=Source(topic="local.requests", partition=3, offset=977),
        ),
    ),
    Fence(
        response_id=RESPONSE, scope=SCOPE, attempt_id=ATTEMPT, worker_id="worker-1", kind="takeover", pool="default",
        model="sluice-tiny", since_offset=41,
    ),
    Frame(
        worker_id="worker-1", emitted_at_us=NOW * 1000, scopes=[SCOPE], scope=[0, 0], response_id=[RESPONSE, RESPONSE],
        attempt_id=[ATTEMPT, ATTEMPT], choice=[0, 0], first_sequence=[1, 4], kind=["content", "content"],
        token_ids=[[11, 12, 13], []], text=["Hé👋", ""], text_ends=[[2, 2, 3], []],
        logprobs=[
            [[("H\xc3\xa9", -0.5), ("H\xc3\xa9", -0.5), ("Ha", -1.5)], [("\xf0", -1.0)], [("\x9f\x91\x8b", 0.0)]], None,
        ],
        finish=["", "stop"], cached_tokens=[0, 2],
    ),
    Ending(
        response_id=RESPONSE, scope=SCOPE, code=EndingCode.RATE_LIMITED_TOKENS, written_by="admission", param=None,
        message="Too many tokens.", retry_after_ms=1_250, limits={"tokens_limit": 1000, "tokens_remaining": 0},
        requested_model="default", reply_to=REPLY_TO, accepted_at_ms=NOW,
    ),
    Started(
        response_id=RESPONSE, scope=SCOPE, model="sluice-tiny", requested_model="default", lane="standard",
        pool="default", prompt_tokens=3, accepted_at_ms=NOW, deadline_ms=NOW + 60_000, on_disconnect="cancel",
    ),
    Release(
        scopes=[SCOPE], scope=[0], response_id=[RESPONSE], choice=[0], first_sequence=[1], kind=["content"],
        text=["Hé👋"], text_ends=[[2, 2, 3]], emitted_at_us=[NOW * 1000],
    ),
    Terminal(
        response_id=RESPONSE, scope=SCOPE, sequence_number=4, code=EndingCode.COMPLETED, finish_reasons=["stop"],
        usage=TokenUsage(prompt_tokens=3, cached_tokens=2, completion_tokens=3), model="sluice-tiny",
        ended_at_ms=NOW + 40,
    ),
    UsageEvent(
        response_id=RESPONSE, scope=SCOPE, usage_id=f"{RESPONSE}/0", choice=0, endpoint="chat.completions",
        model="sluice-tiny", requested_model="default", pool="default", lane="standard", worker_id="worker-1",
        attempts=1, ending=EndingCode.COMPLETED, finish_reason="stop", billable=True, accepted_at_ms=NOW,
        first_token_at_ms=NOW + 20, ended_at_ms=NOW + 40, uncached_input_tokens=1, cached_input_tokens=2,
        output_tokens=3, reasoning_tokens=0, released_tokens=3, reserved_tokens=67,
    ),
    ComputeRecord(
        response_id=RESPONSE, scope=SCOPE, attempt_id=ATTEMPT, worker_id="worker-1", pool="default",
        model="sluice-tiny", prompt_tokens=3, cached_tokens=2, generated_tokens=3, engine_ms=20, outcome="completed",
    ),
    DeliveredCount(response_id=RESPONSE, scope=SCOPE, gateway_id="gateway-1", delivered_tokens=3),
    Presence(scope=Scope(tenant_id="sluice"), worker_id="worker-1", pool="default", hour_ms=NOW - NOW % 3_600_000),
    Cancel(response_id=RESPONSE, scope=SCOPE, reason="client", requested_at_ms=NOW),
    Halt(response_id=RESPONSE, scope=SCOPE, reason="safety_halted"),
    AttemptVoid(
        response_id=RESPONSE, scope=SCOPE, attempt_id=ATTEMPT, worker_id="worker-1", why="tokens_precede",
        begun_offset=43,
    ),
    WorkerState(
        worker_id="worker-1", pool="default", model="sluice-tiny", engine="simulated", state="ready", beat_at_ms=NOW,
        lease_ms=4_000, lane_partitions={Lane.STANDARD: [0, 1]}, home_partitions=[2], running=3, max_running=64,
    ),
    Billed(through_ms=NOW - 5_000, lost_records=3, told_at_ms=NOW),
    PoolLevel(pool="default", level=2, since_ms=NOW, why="standard: a wait of 61000 ms, target 60000"),
    Verdict(
        response_id=RESPONSE, scope=SCOPE, stage="pre-safety", decision="refuse", rule="prompt_deny", kind="disguise",
        disguise="leet", category="privacy", policy_digest="ab" * 32, span_sha256="ab",
    ),
    DeadLetter(
        topic="local.requests", partition=0, offset=7, stage="validation", reason="unknown_version",
        detail="schema_version 9 is not 1", value_base64="e30=", dead_at_ms=NOW,
    ),
    BatchJob(body={"model": "default", "messages": [{"role": "user", "content": "Hello"}]}),
    JobCancel(custom_id="job-1"),
    LineCancel(
        response_id=RESPONSE, scope=SCOPE, requested_at_ms=NOW, deadline_ms=NOW + 60_000,
        reply_to=ReplyTo(partition=3, results_topic="local.batch.results", custom_id="batch_1/7/a", is_untold=True),
    ),
    BatchResult(
        scope=SCOPE, id=RESPONSE, custom_id="job-1",
        response=BatchResponse(status_code=200, request_id=RESPONSE, body={"object": "chat.completion"}),
    ),
]  # fmt: skip
