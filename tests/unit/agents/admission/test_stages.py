"""What the stages make of a good request, and of each kind of bad one: what it gets, and which field it is told."""

import asyncio
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agents.admission.refusals import jittered_ms
from agents.admission.stages import STAGES
from agents.admission.validation import lane_of, validation
from agents.quota.port import Refusal
from agents.safety import prompt_policies
from agents.safety.prompt_policies import PromptRules
from schemas.endings import ENDINGS, EndingCode
from schemas.generated import Opened
from schemas.request import AdmittedRequest, Lane, Message, Sampling, TextPart, Tool
from schemas.verdict import Verdict
from streams.ids import stable_partition
from streams.safety_policy import SafetyPolicy
from tests.unit.agents.admission.world import NOW, RESPONSE, Words, World

ROOT = Path(__file__).resolve().parents[4]
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"o" * 32)


async def test_a_good_request_is_opened_then_put_into_its_lane(world: World) -> None:
    request = world.request("tell me something nice", stage_ms={"gateway": NOW - 1})
    await world.pipeline.handle_request(world.record(request))
    [(place, opened)] = world.log.of(Opened, "local.generated")
    [(lane_place, work)] = world.log.of(AdmittedRequest, "local.inference.default.standard")
    assert world.log.kinds == ["generated", "inference.default.standard", "verdicts"]
    assert (place.partition, lane_place.partition) == (5, 2)
    assert (work.generated_partition, work.opened_offset) == (5, place.offset)
    assert work.prompt_token_ids == [0, 0, 0, 4, 2, 9, 4]
    assert (work.model, work.requested_model, work.max_tokens) == ("tiny", "default", 10)
    assert (opened.prompt_tokens, opened.reserved_tokens, opened.lane) == (7, 17, Lane.STANDARD)
    assert opened.scope.traceparent == work.scope.traceparent == "00-trace"
    assert opened.scope.policy_version == 7
    assert set(work.stage_ms) == {"gateway", "admission", "validation", "quota", "pre-safety", "routing"}
    [(_, verdict)] = world.log.of(Verdict, "local.verdicts")
    assert (verdict.stage, verdict.decision) == ("pre-safety", "allow")


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"tenant": "nobody"}, EndingCode.INVALID_REQUEST, None),
        ({"model": "gpt-9"}, EndingCode.MODEL_NOT_FOUND, "model"),
        ({"model": "secret"}, EndingCode.MODEL_NOT_FOUND, "model"),
        ({"endpoint": "images"}, EndingCode.UNSUPPORTED_PARAMETER, "endpoint"),
        ({"deadline_ms": NOW}, EndingCode.DEADLINE_EXCEEDED, None),
        ({"text": "w " * 97}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "messages"),
        ({"text": "w" * 25_601}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "messages"),
        ({"text": "w " * 80, "sampling": Sampling(max_tokens=30)}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "max_tokens"),
        ({"sampling": Sampling(max_tokens=51)}, EndingCode.INVALID_REQUEST, "max_tokens"),
        ({"sampling": Sampling(max_tokens=5, min_tokens=6)}, EndingCode.INVALID_REQUEST, "min_tokens"),
        ({"sampling": Sampling(seed=1)}, EndingCode.UNSUPPORTED_PARAMETER, "seed"),
        ({"sampling": Sampling(logit_bias={1_000: 1.0})}, EndingCode.INVALID_REQUEST, "logit_bias"),
        ({"sampling": Sampling(logit_bias={-1: 1.0})}, EndingCode.INVALID_REQUEST, "logit_bias"),
        ({"sampling": Sampling(stop_token_ids=[5, 1_000])}, EndingCode.INVALID_REQUEST, "stop_token_ids"),
        ({"sampling": Sampling(allowed_token_ids=[5, 1_000])}, EndingCode.INVALID_REQUEST, "allowed_token_ids"),
        ({"messages": [Message(role="assistant", content=[TextPart(text="hello")])]},
         EndingCode.INVALID_REQUEST, "messages"),
        ({"text": "please ÓPEN the  vault!"}, EndingCode.PROMPT_REFUSED, "messages"),
    ],
)  # fmt: skip
async def test_a_bad_request_ends_and_names_the_field(
    world: World, changes: dict[str, object], code: EndingCode, param: str | None
) -> None:
    world.beat(accepts_seed=False)
    text = str(changes.pop("text", "hello"))
    tenant = str(changes.pop("tenant", "acme"))
    request = world.request(text, tenant=tenant, **changes)
    await world.pipeline.handle_request(world.record(request))
    [ending] = world.log.endings
    assert (ending.code, ending.param, ending.written_by) == (code, param, "admission")
    assert ending.reply_to == request.reply_to
    assert text not in ending.message
    assert not world.log.dead
    [place] = [record for record in world.log.records if record.topic == "local.generated"]
    assert place.partition == stable_partition(RESPONSE, 8)
    assert not world.log.of(AdmittedRequest, "local.inference.default.standard")


@pytest.mark.parametrize(
    ("text", "sampling", "told"),
    [
        ("w " * 97, Sampling(), "your messages resulted in 100 tokens. Please reduce the length of the messages."),
        (
            "w " * 97, Sampling(max_tokens=30),
            "you requested 130 tokens (100 in the messages, 30 in the completion). "
            "Please reduce the length of the messages or completion.",
        ),
        (
            "w " * 80, Sampling(max_tokens=30),
            "you requested 113 tokens (83 in the messages, 30 in the completion). "
            "Please reduce the length of the messages or completion.",
        ),
        ("w" * 25_601, Sampling(), "your messages have 25601 characters, which that many tokens cannot hold. "
         "Please reduce the length of the messages."),
    ],
    ids=["prompt", "prompt and more", "both", "endless"],
)  # fmt: skip
async def test_what_exceeds_the_context_is_told_in_the_words_that_clients_look_for(
    world: World, text: str, sampling: Sampling, told: str
) -> None:
    """litellm and agents fall back to a larger model, or shorten the chat, by the first sentence and its figure."""
    await world.pipeline.handle_request(world.record(world.request(text, sampling=sampling)))
    [ending] = world.log.endings
    assert ending.code is EndingCode.CONTEXT_LENGTH_EXCEEDED
    assert ending.message == f"This model's maximum context length is 100 tokens. However, {told}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("w " * 110, "prompt is too long: 113 tokens > 100 maximum"),
        ("w " * 97, "input length and `max_tokens` exceed context limit: 100 + 30 > 100"),
        ("w" * 25_601, "prompt is too long: at least 101 tokens > 100 maximum"),
    ],
    ids=["prompt", "both", "endless"],
)
async def test_anthropics_clients_are_told_it_in_words_that_those_look_for(world: World, text: str, told: str) -> None:
    """Agents shorten a chat by these words and their figures."""
    request = world.request(text, sampling=Sampling(max_tokens=30), endpoint="messages")
    await world.pipeline.handle_request(world.record(request))
    [ending] = world.log.endings
    assert (ending.code, ending.message.partition(",")[0]) == (EndingCode.CONTEXT_LENGTH_EXCEEDED, told)


@pytest.mark.parametrize(
    ("text", "asked", "bound"),
    [("hello", 20, 20), ("hello", 51, 50), ("hello", 64_000, 50), ("w " * 80, 30, 17), ("w " * 80, 4_096, 17)],
    ids=["within", "above the limit", "as much as Anthropic gives", "above the room", "above both"],
)
async def test_anthropics_clients_may_name_more_tokens_than_there_are(
    world: World, text: str, asked: int, bound: int
) -> None:
    """They have to name some, and their packages name what Anthropic's models give."""
    request = world.request(text, sampling=Sampling(max_tokens=asked), endpoint="messages")
    await world.pipeline.handle_request(world.record(request))
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.default.standard")
    [(_, opened)] = world.log.of(Opened, "local.generated")
    assert work.max_tokens == opened.max_tokens == bound
    assert opened.reserved_tokens == len(work.prompt_token_ids) + bound


@pytest.mark.parametrize("text", ["w " * 97, "w" * 25_601], ids=["with its answer", "endless"])
async def test_a_prompt_that_is_too_long_is_named_as_responses_call_it(world: World, text: str) -> None:
    await world.pipeline.handle_request(world.record(world.request(text, endpoint="responses")))
    [ending] = world.log.endings
    assert ending.code is EndingCode.CONTEXT_LENGTH_EXCEEDED
    assert "messages" not in ending.message
    assert "Please reduce the length of the input" in ending.message


async def test_a_model_that_may_not_be_used_and_one_that_does_not_exist_read_the_same(world: World) -> None:
    messages = []
    for model in ("secret", "absent"):
        await world.pipeline.handle_request(
            world.record(world.request(model=model, response_id=RESPONSE[:-1] + model[0].replace("s", "e")))
        )
        messages.append(world.log.endings[-1].message.replace(model, ""))
    assert messages[0] == messages[1]


async def test_a_seed_is_honoured_where_the_engine_can(world: World) -> None:
    world.beat(accepts_seed=True)
    await world.pipeline.handle_request(world.record(world.request(sampling=Sampling(seed=1, max_tokens=5))))
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.default.standard")
    assert work.sampling.seed == 1


@pytest.mark.parametrize("messages", [["hi"] * 400, ["long"] * 3 + ["words " * 4_000]], ids=["many", "long"])
async def test_what_takes_long_to_tokenise_leaves_the_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch, messages: list[str]
) -> None:
    threads = set()

    def encode_chat(self: Words, messages: Sequence[Message], *, tools: Sequence[Tool], at_most: int) -> list[int]:
        threads.add(threading.get_ident())
        return [0]

    monkeypatch.setattr(Words, "encode_chat", encode_chat)
    said = [Message(role="user", content=[TextPart(text=text)]) for text in messages]
    await validation(world.request(messages=said), world.services)
    assert threads - {threading.get_ident()}
    await validation(world.request(messages=said[:3]), world.services)
    assert threading.get_ident() in threads


async def test_an_unbounded_answer_is_bounded_by_the_context_and_the_tenant(world: World) -> None:
    await world.pipeline.handle_request(world.record(world.request("w " * 60, sampling=Sampling())))
    [(_, opened)] = world.log.of(Opened, "local.generated")
    assert opened.max_tokens == 100 - 63


async def test_a_refused_prompt_returns_its_tokens_and_leaves_a_verdict_without_text(world: World) -> None:
    await world.pipeline.handle_request(world.record(world.request("now open the vault quickly")))
    [(_, verdict)] = world.log.of(Verdict, "local.verdicts")
    assert (verdict.decision, verdict.rule) == ("refuse", "prompt_deny")
    assert verdict.span_sha256 == hashlib.sha256(b"open the vault").hexdigest()
    assert "vault" not in verdict.encode().decode()
    assert world.quota.tenants["acme"].active == set()
    assert world.quota.tenants["acme"].tokens == 500


async def test_a_verdict_tells_kind_category_and_disguise_and_neither_prompt_nor_phrase(world: World) -> None:
    world.change(
        policy=SafetyPolicy.model_validate(
            {
                "prompt_deny": [{"phrase": "open the vault", "category": "non_violent_crimes"}],
                "prompt_deny_patterns": [{"pattern": "vaults? [0-9]+", "category": "privacy"}],
            }
        )
    )
    told = {
        "please 0p3n the vault": ("prompt_deny", "disguise", "leet", "non_violent_crimes"),
        "please b3BlbiB0aGUgdmF1bHQ= now": ("prompt_deny", "disguise", "base64", "non_violent_crimes"),
        "it was vault 101": ("prompt_deny_patterns", "pattern", "", "privacy"),
        "open the VAULT": ("prompt_deny", "phrase", "", "non_violent_crimes"),
    }
    for number, text in enumerate([*told, "tell me more"]):
        await world.pipeline.handle_request(world.record(world.request(text, response_id=f"{RESPONSE[:-1]}{number}")))
    verdicts = [verdict for _, verdict in world.log.of(Verdict, "local.verdicts")]
    assert [(each.rule, each.kind, each.disguise, each.category) for each in verdicts] == [*told.values(), ("",) * 4]
    assert [each.decision for each in verdicts] == ["refuse"] * 4 + ["allow"]
    assert {each.policy_digest for each in verdicts} == {
        (await world.services.prompt_policies.of(world.directory.all["acme"])).digest
    }
    assert not any("vault" in each.encode().decode().lower() for each in verdicts)
    assert [(each.code, each.param) for each in world.log.endings] == [(EndingCode.PROMPT_REFUSED, "messages")] * 4


async def test_phrases_are_compiled_once_however_often_the_settings_are_read(world: World) -> None:
    tenant, policies = world.directory.all["acme"], world.services.prompt_policies
    compiled = await policies.of(tenant)
    again = tenant.model_copy(deep=True)
    assert again.policy is not tenant.policy
    assert await policies.of(again) is compiled
    policy = tenant.policy.model_copy(update={"prompt_allow": ["open the vault of heaven"]})
    assert await policies.of(tenant.model_copy(update={"policy": policy})) is not compiled


def of_many_phrases(*phrases: str) -> SafetyPolicy:
    filling = [f"phrase number {number}" for number in range(100)]
    return SafetyPolicy.model_validate({"prompt_deny": [*filling, *phrases]})


class SlowlyCompiled(PromptRules):
    """The rules of many phrases take until they may be done."""

    def __init__(self, policy: SafetyPolicy) -> None:
        self.threads.append(threading.get_ident())
        assert not policy.prompt_deny[1:] or self.may_be_done.wait(30)
        super().__init__(policy)

    threads: ClassVar[list[int]]
    may_be_done: ClassVar[threading.Event]


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[SlowlyCompiled]]:
    SlowlyCompiled.threads, SlowlyCompiled.may_be_done = [], threading.Event()
    monkeypatch.setattr(prompt_policies, "PromptRules", SlowlyCompiled)
    yield SlowlyCompiled
    SlowlyCompiled.may_be_done.set()


async def test_many_phrases_are_compiled_once_and_beside_the_event_loop(
    world: World, compiling: type[SlowlyCompiled]
) -> None:
    world.change(policy=of_many_phrases("open the vault"))
    said = ["open the v4ult", "hello", "hello again"]
    requests = [world.request(text, response_id=f"{RESPONSE[:-1]}{at}") for at, text in enumerate(said)]
    handled = [asyncio.create_task(world.pipeline.handle_request(world.record(each))) for each in requests]
    of_another = world.request("hello", tenant="gold", response_id=f"{RESPONSE[:-1]}9")
    await world.pipeline.handle_request(world.record(of_another))
    assert [work.scope.tenant_id for work in worked_on(world)] == ["gold"]
    assert not any(each.done() for each in handled), "they wait for the rules"
    assert len(world.quota.tenants["acme"].active) == len(handled), "with what they may need"
    handled.pop().cancel()
    compiling.may_be_done.set()
    await asyncio.gather(*handled)
    assert [work.scope.tenant_id for work in worked_on(world)] == ["gold", "acme"]
    assert [each.code for each in world.log.endings] == [EndingCode.PROMPT_REFUSED]
    loop = threading.get_ident()
    assert sorted(thread == loop for thread in compiling.threads) == [False, True], (
        "gold's, who denies nothing, at once"
    )


async def test_who_asks_while_another_policy_is_compiled_gets_the_own_one(
    world: World, compiling: type[SlowlyCompiled]
) -> None:
    policies, tenant = world.services.prompt_policies, world.directory.all["acme"]
    before = tenant.model_copy(update={"policy": of_many_phrases("open the vault")})
    edited = tenant.model_copy(update={"policy": of_many_phrases("close the vault")})
    asked = [asyncio.create_task(policies.of(each)) for each in (before, edited, before)]
    await asyncio.sleep(0)
    assert policies.at_hand(edited) is None
    compiling.may_be_done.set()
    digests = [rules.digest for rules in await asyncio.gather(*asked)]
    assert digests[0] == digests[2] != digests[1]
    assert {(await policies.of(each)).digest for each in (before, edited)} == {*digests}


async def test_who_leaves_while_its_rules_wait_for_another_tenant_s_leaves_them_to_the_others(
    world: World, compiling: type[SlowlyCompiled]
) -> None:
    policies, many = world.services.prompt_policies, of_many_phrases("open the vault")
    first, second = (each.model_copy(update={"policy": many}) for each in world.directory.all.values())
    asked = [asyncio.create_task(policies.of(each)) for each in (first, second, second)]
    await asyncio.sleep(0)
    asked.pop(1).cancel()
    await asyncio.sleep(0)
    compiling.may_be_done.set()
    assert len({rules.digest for rules in await asyncio.gather(*asked)}) == 1
    assert len(compiling.threads) == 2


async def test_what_cannot_be_compiled_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = world.services.prompt_policies
    tenant = world.directory.all["acme"].model_copy(update={"policy": of_many_phrases("open the vault")})

    def fails(_policy: SafetyPolicy) -> PromptRules:
        raise MemoryError

    with monkeypatch.context() as failing:
        failing.setattr(prompt_policies, "PromptRules", fails)
        with pytest.raises(MemoryError):
            await policies.of(tenant)
    assert await policies.of(tenant)
    assert policies.at_hand(tenant)


def worked_on(world: World) -> list[AdmittedRequest]:
    return [work for lane in Lane for _, work in world.log.of(AdmittedRequest, f"local.inference.default.{lane}")]


def test_retry_advice_is_jittered_and_repeatable() -> None:
    advice = {jittered_ms(10_000, f"r{i}") for i in range(50)}
    assert len(advice) > 40
    assert all(10_000 <= ms <= 12_500 for ms in advice)
    assert jittered_ms(10_000, "r1") == jittered_ms(10_000, "r1")
    assert jittered_ms(0, "r1") <= 250


async def test_advice_to_wait_is_jittered_once(world: World) -> None:
    limits = world.directory.all["acme"].limits
    await world.quota.reserve("acme", limits, "other", tokens=490, deadline_ms=NOW + 1)
    raw = await world.quota.reserve("acme", limits, "as much", tokens=15, deadline_ms=NOW)
    await world.pipeline.handle_request(world.record(world.request()))
    [ending] = world.log.endings
    assert isinstance(raw, Refusal)
    assert raw.retry_after_ms is not None
    assert ending.retry_after_ms == jittered_ms(raw.retry_after_ms, RESPONSE)


async def test_quota_refusals_carry_advice_and_figures(world: World) -> None:
    await world.quota.reserve("acme", world.directory.all["acme"].limits, "other", tokens=490, deadline_ms=NOW + 1)
    await world.pipeline.handle_request(world.record(world.request()))
    [ending] = world.log.endings
    assert ending.code is EndingCode.RATE_LIMITED_TOKENS
    assert ending.retry_after_ms is not None
    assert ending.retry_after_ms >= 600
    assert ending.limits["tokens_limit"] == 500
    assert ending.limits["tokens_remaining"] == 10


@pytest.mark.parametrize(("tokens_per_minute", "param"), [(12, "max_tokens"), (5, "messages")])
async def test_a_request_that_can_never_fit_is_told_what_to_change_and_not_to_come_again(
    world: World, tokens_per_minute: int, param: str
) -> None:
    world.limit(tokens_per_minute=tokens_per_minute)
    for _ in range(2):
        await world.pipeline.handle_request(world.record(world.request()))
    for ending in world.log.endings:
        assert (ending.code, ending.param, ending.retry_after_ms) == (EndingCode.INVALID_REQUEST, param, None)
        assert not ENDINGS[ending.code].retryable
        assert ending.message == f"The request needs 15 tokens; the limit is {tokens_per_minute} per minute."
        assert ending.limits["tokens_limit"] == tokens_per_minute
    assert len(world.log.endings) == 2


async def test_a_full_pool_refuses_with_advice_and_spends_nothing(world: World) -> None:
    for second in range(5):
        queue = {"waiting": 90, "left": second, "left_tokens": second * 100_000}
        world.now_ms += 1_000
        world.beat(queued_tokens=10**6, queues={"batch": queue})
    await world.pipeline.handle_request(world.record(world.request()))
    [ending] = world.log.endings
    assert ending.code is EndingCode.OVERLOADED
    assert ending.message.startswith("rejected-overloaded")
    assert ending.retry_after_ms == jittered_ms(2_500, RESPONSE), "a quarter of it, as fast as it has emptied"
    assert world.quota.tenants["acme"].active == set()


@pytest.mark.parametrize(("whose", "endings"), [("acme", [EndingCode.OVERLOADED]), ("beta", [])])
async def test_a_tenant_that_fills_a_pool_is_refused_and_another_is_not(
    world: World, whose: str, endings: list[EndingCode]
) -> None:
    world.beat(queued_tokens=600_000, queued_of={whose: 600_000})
    await world.pipeline.handle_request(world.record(world.request()))
    assert [ending.code for ending in world.log.endings] == endings


def test_tier_and_service_tier_choose_the_lane() -> None:
    assert lane_of("premium", "auto") is Lane.INTERACTIVE
    assert lane_of("premium", "default") is Lane.STANDARD
    assert lane_of("free", "priority") is Lane.STANDARD
    assert lane_of("premium", "batch") is Lane.BATCH


def test_the_table_lists_the_stages_in_order() -> None:
    assert [stage.name for stage in STAGES] == ["validation", "quota", "pre-safety", "routing"]


def test_stages_know_nothing_of_faust() -> None:
    check = "import sys, agents.admission.pipeline; assert not {'faust', 'aiokafka'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60, cwd=ROOT)
