"""Where else a response may be answered, and how it gets there when it failed before its first token.

The list of further places is decided with the route: the other pools of its model that take it, then those of the
smaller model that may answer in its place. Post-safety says from the log that a response is moved
(`streams.accepted_prefix`), and how often it was; here one of the places that have not had it is chosen, once for each
move: what was chosen stands with its reservation, also that no place takes it, and who is asked again does the same.
For want of workers alone it ends nowhere: where no place takes it, it goes on waiting for its own pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from agents.admission.fallback import answered_by, smaller_of, stand_in
from agents.admission.placing import option_of, route_in
from agents.admission.route_plan import Looked, next_place, takes, with_room
from agents.admission.services import Services
from agents.admission.validation import ask_of, readmitted, unsupported_by
from agents.quota.limits import limits_of
from agents.quota.port import Decided, Finished, Refunded
from schemas.admission import Admission, Decision, Move
from schemas.codec import Undecodable, decode
from schemas.endings import EndingCode
from schemas.fallback import Fallback
from schemas.request import Request
from streams.directory import Model, pools_for

_SOURCE: TypeAdapter[Request | Admission] = TypeAdapter(Annotated[Request | Admission, Field(discriminator="type")])


@dataclass(frozen=True, slots=True)
class Nowhere:
    """No further place takes it: it ends as it failed. `is_over`: it has ended, or is to be left where it was put."""

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
    if smaller is not None and unsupported_by(admission.request, smaller) is None:
        names += [each.name for each in pools_for(tenant, smaller, services.catalog)]
    return [name for name in dict.fromkeys(names) if name != pool][: services.max_moves]


async def moved(move: Move, services: Services) -> tuple[Admission, Decision] | Nowhere:
    """The response as it is answered at its next place, and where that is. Raises QuotaUnavailable, LogError."""
    if services.clock_ms() >= move.opened.deadline_ms:
        return Nowhere(is_over=True)
    tenant_id, limits = move.scope.tenant_id, limits_of(move.scope.tenant_id, services.directory)
    stands = await services.quota.look(tenant_id, limits, move.response_id, deadline_ms=move.opened.deadline_ms)
    if isinstance(stands, Finished | Refunded):
        return Nowhere(is_over=True)
    if not isinstance(stands, Decided):
        return Nowhere()
    request = await _request(move, services)
    found = None if request is None else await _chosen(move, request, stands, services)
    # A crash after it: whoever is asked again finds this place, whatever has changed in between.
    wanted = None if found is None else found[1]
    placed = await services.quota.place(tenant_id, limits, move.response_id, move.move, wanted)
    if placed is None:
        return Nowhere(is_over=True)
    if placed.place == wanted:
        return found or Nowhere()
    if placed.place is None:
        return Nowhere()
    at_place = Decided(placed.place, stands.tokens)
    again = None if request is None else await readmitted(request, at_place, services)
    # What cannot be made again stands in the lane of its place, as a rule; it must not be ended there.
    return Nowhere(is_over=True) if again is None else (again, placed.place)


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


async def _chosen(
    move: Move, request: Request, stands: Decided, services: Services
) -> tuple[Admission, Decision] | None:
    admission = await readmitted(request, stands, services)
    if admission is None:
        return None
    left = [name for name in move.opened.further if name not in move.tried]
    model = services.catalog.model(admission.model)
    if model is not None:
        # Before the prompt is written for a smaller one too, which takes its time.
        own = option_of(admission, [name for name in left if name in model.pools], services)
        if (at := with_room(own, services.queue_bound)) is not None:
            return admission, _route_of(move, admission, at, services)
    deserted = move.tried[-1] if move.tried and move.failed.code is EndingCode.UNAVAILABLE else None
    answers = await _answers(move, admission, [*left, *([] if deserted is None else [deserted])], services)
    options = [option_of(answer, [name for name in names if name in left], services) for answer, names in answers]
    if (found := next_place(options, services.queue_bound)) is not None:
        index, at = found
        return answers[index][0], _route_of(move, answers[index][0], at, services)
    for answer, names in answers:
        if deserted in names:
            [at] = option_of(answer, [deserted], services).pools
            return answer, _route_of(move, answer, at, services)
    return None


async def _answers(
    move: Move, admission: Admission, places: Sequence[str], services: Services
) -> list[tuple[Admission, list[str]]]:
    """As its model answers it, and as the smaller one would, each with those of the places that are of that model."""
    model = services.catalog.model(admission.model)
    if model is None:
        return []
    answers = [(admission, [name for name in places if name in model.pools])]
    smaller = services.catalog.model(model.fallback) if admission.fallback is None else None
    if smaller is not None and (theirs := [name for name in places if name in smaller.pools]):
        by_smaller = await answered_by(smaller, admission, services)
        if by_smaller is not None:
            answers.append((_instead_of(model, by_smaller, move), theirs))
    return answers


def _instead_of(model: Model, answer: Admission, move: Move) -> Admission:
    reason = "no_worker" if move.failed.code is EndingCode.UNAVAILABLE else "failed"
    return answer.model_copy(update={"fallback": Fallback(asked=model.name, reason=reason)})


def _route_of(move: Move, answer: Admission, at: Looked, services: Services) -> Decision:
    """In a partition of a worker's lane, of which it keeps its own, as of the partition of `generated`."""
    route = route_in(at.loads, move.opened.lane, answer, services)
    return Decision(
        pool=at.pool.name,
        lane=move.opened.lane,
        lane_partition=route.lane_partition,
        generated_partition=move.generated_partition,
        worker_id=route.worker_id,
        brownout=answer.brownout,
        lowered_from=move.opened.lowered_from,
        stand_in=None if answer.fallback is None else stand_in(answer, answer.fallback.reason),
        further=move.opened.further,
    )
