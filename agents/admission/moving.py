"""Where else a response may be answered, and how it gets there when it failed before its first token.

The list of further places is decided with the route: the other pools of its model that take it, then those of the
smaller model that may answer in its place. Post-safety says from the log that a response is moved
(`streams.accepted_prefix`), and how often it was; here one of the places that have not had it is chosen. Choosing again
is harmless: of what stands in two lanes the fences let one count.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from agents.admission.fallback import answered_by, smaller_of
from agents.admission.route_plan import Looked, Option, next_place, takes
from agents.admission.routing import choose
from agents.admission.services import Services
from agents.admission.validation import ask_of, readmitted
from agents.quota.limits import limits_of
from agents.quota.store import Decided, Finished, Refunded
from schemas.admission import Admission, Decision, Move
from schemas.codec import Undecodable, decode
from schemas.endings import EndingCode
from schemas.fallback import Fallback
from schemas.request import Request
from streams.directory import Model, pools_for

_SOURCE: TypeAdapter[Request | Admission] = TypeAdapter(Annotated[Request | Admission, Field(discriminator="type")])


@dataclass(frozen=True, slots=True)
class Nowhere:
    """No further place takes it: it ends as it failed. `is_over`: it has ended, and nothing is to be done."""

    is_over: bool = False


def further_places(admission: Admission, pool: str, services: Services) -> list[str]:
    """Pools by name, behind the one that it is routed to, in the order in which they are asked."""
    tenant = services.directory.tenant(admission.scope.tenant_id)
    model = services.catalog.model(admission.model)
    if tenant is None or model is None or not services.max_moves:
        return []
    ask = ask_of(admission, tenant)
    names = [each.name for each in pools_for(tenant, model, services.catalog) if takes(each, ask)]
    smaller = smaller_of(admission, services) if admission.fallback is None else None
    if smaller is not None:
        names += [each.name for each in pools_for(tenant, smaller, services.catalog)]
    return [name for name in dict.fromkeys(names) if name != pool][: services.max_moves]


async def moved(move: Move, services: Services) -> tuple[Admission, Decision] | Nowhere:
    """The response as it is answered at its next place, and where that is. Raises QuotaUnavailable, LogError."""
    if services.clock_ms() >= move.opened.deadline_ms:
        return Nowhere(is_over=True)
    tenant_id = move.scope.tenant_id
    stands = await services.quota.look(
        tenant_id, limits_of(tenant_id, services.directory), move.response_id, deadline_ms=move.opened.deadline_ms
    )
    if isinstance(stands, Finished | Refunded):
        return Nowhere(is_over=True)
    request = await _request(move, services)
    admission = None
    if request is not None and isinstance(stands, Decided):
        admission = await readmitted(request, stands, services)
    if admission is None:
        return Nowhere()
    return await _placed(move, admission, services)


async def _request(move: Move, services: Services) -> Request | None:
    """What it was admitted from; None where that is gone."""
    if move.opened.source is None:
        return None
    value = await services.read_source(move.opened.source)
    if value is None:
        return None
    try:
        found = decode(_SOURCE, value)
    except Undecodable:
        return None
    request = found if isinstance(found, Request) else found.request
    return request if request.response_id == move.response_id else None


async def _placed(move: Move, admission: Admission, services: Services) -> tuple[Admission, Decision] | Nowhere:
    left = [name for name in move.opened.further if name not in move.tried]
    model = services.catalog.model(admission.model)
    if model is None:
        return Nowhere()
    answers = [(admission, [name for name in left if name in model.pools])]
    smaller = services.catalog.model(model.fallback) if admission.fallback is None else None
    if smaller is not None and (theirs := [name for name in left if name in smaller.pools]):
        by_smaller = await answered_by(smaller, admission, services)
        if by_smaller is not None:
            answers.append((_instead_of(model, by_smaller, move), theirs))
    options = [_option(answer, names, services) for answer, names in answers]
    found = next_place(options, services.queue_bound)
    if found is None:
        return Nowhere()
    index, at = found
    answer = answers[index][0]
    return answer, _route_of(move, answer, at, services)


def _instead_of(model: Model, answer: Admission, move: Move) -> Admission:
    reason = "no_worker" if move.failed.code is EndingCode.UNAVAILABLE else "failed"
    return answer.model_copy(update={"fallback": Fallback(asked=model.name, reason=reason)})


def _option(answer: Admission, names: list[str], services: Services) -> Option:
    tenant_id, now_ms = answer.scope.tenant_id, services.clock_ms()
    pools = [Looked(services.catalog.pool(name), services.workers.live(name, now_ms, tenant_id)) for name in names]
    return Option(pools, ask_of(answer, services.directory.tenant(tenant_id)))


def _route_of(move: Move, answer: Admission, at: Looked, services: Services) -> Decision:
    """In a partition of a worker's lane, of which it keeps its own, as of the partition of `generated`."""
    counts = services.topics.counts
    route = choose(
        at.loads, move.opened.lane, answer.response_id, lane_partitions=counts.lane,
        generated_partitions=counts.generated, cache_id=answer.cache_id, excess=services.prefix_load_excess,
    )  # fmt: skip
    return Decision(
        pool=at.pool.name,
        lane=move.opened.lane,
        lane_partition=route.lane_partition,
        generated_partition=move.generated_partition,
        worker_id=route.worker_id,
        brownout=answer.brownout,
        lowered_from=move.opened.lowered_from,
        further=move.opened.further,
    )
