"""How an admission becomes visible: what is written, in which order, and what a crash in between causes.

Before any of it, routing has stored the decision (0). A crash there: the redelivered request replays the decision.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from agents.admission.publisher import Publisher
from agents.admission.refusals import Buried, Refused, ending_of
from agents.quota.beside import Beside, further_limits
from agents.quota.limits import limits_of
from agents.quota.port import Decided, Finished, QuotaStore, Refusal
from agents.safety.output_policies import OutputPolicyWriter
from schemas.admission import Admission, Decision, Move
from schemas.generated import Ending, Opened, Source
from schemas.policy import OutputPolicy
from schemas.request import AdmittedRequest, Request
from streams.dead_letters import letter_of
from streams.directory import ModelCatalog, TenantDirectory, continues
from streams.ids import stable_partition
from streams.log.port import LogRecord
from streams.topics import Topics


@dataclass(frozen=True, slots=True)
class Publication:
    """Writes outcomes. Every method returns when everything is acknowledged; all may be repeated."""

    topics: Topics
    publisher: Publisher
    quota: QuotaStore
    directory: TenantDirectory
    catalog: ModelCatalog
    output_policies: OutputPolicyWriter

    async def admitted(
        self, admission: Admission, decision: Decision, now_ms: int, source: Source | None = None
    ) -> None:
        """`source`: where the record stands that it is admitted from, for who moves it."""
        common = _said_by_both(admission, decision, now_ms)
        structure = admission.request.sampling.structured_outputs
        opened = Opened(
            **common,
            lane_partition=decision.lane_partition,
            prompt_tokens=len(admission.prompt_token_ids),
            reserved_tokens=admission.reserved_tokens,
            limits=admission.limits,
            queued=admission.queued,
            brownout=admission.brownout,
            fallback=admission.fallback,
            lowered_from=decision.lowered_from,
            output_policy=await self._output_policy(admission.scope.tenant_id, now_ms),
            content_is_json=structure is not None and structure.value_schema is not None,
            further=decision.further,
            source=source if decision.further else None,
            echo=admission.request.echo,
        )
        # The verdict is nobody's precondition; it only has to be there before the event is acknowledged.
        noting = asyncio.create_task(self._verdict(admission)) if admission.verdict is not None else None
        try:
            # 1. The promise of an ending. A crash after it: the redelivered request opens the response again, in the
            #    same partition; post-safety takes the first and ends it at its deadline even if nothing follows.
            opened_offset = await self.publisher.publish(
                self.topics.generated.name,
                opened.encode(),
                key=admission.response_id,
                partition=decision.generated_partition,
            )
            # 2. The work, not beside 1: the fence of a worker that was faster than `opened` would be answered with
            #    `ended`. A crash after it, before the event's acknowledgement: the redelivered request puts it into
            #    the same partition again; the worker that claims the second copy finds the claim or the terminal of
            #    the first.
            await self._work(admission, decision, common, opened_offset)
        finally:
            if noting is not None:
                await noting
        # 3. The caller acknowledges the event.

    async def _work(
        self, admission: Admission, decision: Decision, common: dict[str, Any], read_back_from: int
    ) -> None:
        # As they are now: of what was put into the lane twice, the worker goes by the copy that it read first.
        tenant = self.directory.tenant(admission.scope.tenant_id)
        work = AdmittedRequest(
            **common,
            **_callable(admission.request),
            prompt_token_ids=admission.prompt_token_ids,
            input_ends=admission.input_ends,
            dimensions=admission.request.dimensions,
            sampling=admission.request.sampling,
            generated_partition=decision.generated_partition,
            opened_offset=read_back_from,
            weight=1 if tenant is None else tenant.weight,
            continuation=continues(tenant, self.catalog.model(admission.model)),
            cache_id=admission.cache_id,
        )
        await self.publisher.publish(
            self.topics.lane(decision.pool, decision.lane).name,
            work.encode(),
            key=admission.response_id,
            partition=decision.lane_partition,
        )

    async def moved(self, admission: Admission, decision: Decision, move: Move, now_ms: int) -> None:
        """The work, in the lane of its place. A crash after it: it is put into that pool's lane again, and whoever
        reads the second copy finds the claim or the terminal of the first.
        """
        said = {**_said_by_both(admission, decision, now_ms), "move": move.move, "fallback": admission.fallback}
        await self._work(admission, decision, {**said, "losses": move.attempts}, move.begins_at)

    async def not_moved(self, move: Move) -> None:
        """It ends as it failed. Void once a worker has begun it, where the store has lost that there is a place."""
        opened, failed = move.opened, move.failed
        ending = Ending(
            response_id=move.response_id,
            scope=move.scope,
            code=failed.code,
            written_by="admission",
            attempt_id="",
            message=failed.message,
            param=failed.param,
            move=move.move,
            endpoint=opened.endpoint,
            requested_model=opened.requested_model,
            reply_to=opened.reply_to,
            accepted_at_ms=opened.accepted_at_ms,
            prompt_tokens=opened.prompt_tokens,
        )
        await self.publisher.publish(
            self.topics.generated.name, ending.encode(), key=move.response_id, partition=move.generated_partition
        )

    async def _output_policy(self, tenant_id: str, now_ms: int) -> str:
        """A crash behind it: the phrases stand on `policies`, and nobody names them yet."""
        tenant = self.directory.tenant(tenant_id)
        if tenant is None:
            return ""

        def write(policy: OutputPolicy) -> Awaitable[int]:
            return self.publisher.publish(self.topics.policies.name, policy.encode(), key=policy.key)

        return await self.output_policies.digest(tenant, now_ms, write)

    async def _verdict(self, carrier: Admission | Refused) -> None:
        if carrier.verdict is not None:
            await self.publisher.note(
                self.topics.verdicts.name, carrier.verdict.encode(), key=carrier.verdict.response_id
            )

    async def refused(self, refused: Refused) -> Decided | None:
        """What an earlier delivery was decided to be, if that stands; then nothing is written.

        Raises QuotaUnavailable while the refusal cannot be stored, PublishFailed.
        """
        origin, refusal = refused.origin, refused.refusal
        partition = stable_partition(origin.response_id, self.topics.counts.generated)
        if not refused.stored:
            # 1. The refusal is stored and what was held is returned, in one step. A crash after it: the redelivered
            #    request meets the same refusal, whatever has changed in between.
            limits = limits_of(origin.scope.tenant_id, self.directory)
            model = self.catalog.model(origin.requested_model)
            also = Beside(further_limits(origin.scope, "" if model is None else model.name, self.directory))
            outcome = await self.quota.refuse(
                origin.scope.tenant_id, limits, origin.response_id, refusal,
                deadline_ms=origin.deadline_ms, spends_request=refused.spends_request, beside=also,
            )  # fmt: skip
            match outcome:
                case Finished():
                    return None
                case Decided() if refused.unproved:
                    return None
                case Decided() if refused.request is not None:
                    return outcome
                case Decided(decision, _):
                    # An earlier delivery routed it, so `opened` may stand there: the ending belongs beside it.
                    partition = decision.generated_partition
                case Refusal():
                    refusal = outcome
        # 2. A crash after it: the redelivered request writes the same ending again, which is void.
        writing = self.publisher.publish(
            self.topics.generated.name,
            ending_of(origin, refusal).encode(),
            key=origin.response_id,
            partition=partition,
        )
        if refused.verdict is None:
            await writing
        else:
            await asyncio.gather(writing, self._verdict(refused))
        # 3. The caller acknowledges the event.
        return None

    async def bury(self, record: LogRecord, stage: str, buried: Buried, now_ms: int) -> None:
        """Writes the dead letter of a record. A crash after it: a second dead letter of the same offset."""
        letter = letter_of(record, stage, buried.reason, buried.detail, now_ms)
        await self.publisher.publish(self.topics.dead_letters.name, letter.encode(), key=letter.key)


def _callable(request: Request) -> dict[str, Any]:
    """The tools, where there is something to call."""
    if not request.may_call:
        return {}
    return {"tools": request.tools, "tool_choice": request.tool_choice}


def _said_by_both(admission: Admission, decision: Decision, now_ms: int) -> dict[str, Any]:
    """What stands in the promise of an ending and in the work alike."""
    request = admission.request
    return {
        "response_id": admission.response_id,
        "scope": admission.scope,
        "stage_ms": admission.stage_ms,
        "endpoint": request.endpoint,
        "model": admission.model,
        "requested_model": request.model,
        "pool": decision.pool,
        "lane": decision.lane,
        "choices": request.choices,
        "max_tokens": admission.max_tokens,
        "reply_to": request.reply_to,
        "accepted_at_ms": request.accepted_at_ms,
        "admitted_at_ms": now_ms,
        "deadline_ms": request.deadline_ms,
        "on_disconnect": request.on_disconnect,
    }
