"""Whom a smaller model may answer, and what its answer to a request may be.

It is asked for where the model that was asked for has no room, or no worker (`agents.admission.route_plan`), while the
request is routed: what is reserved by then stays as it is, and the smaller model answers within it. What it costs, and
what its client is told, follow from the model that stands in `opened`.
"""

from agents.admission.services import Services
from agents.admission.validation import may_wait, readmitted, validated
from agents.quota.port import Decided
from schemas.admission import Admission, StandIn
from schemas.fallback import FallbackReason
from schemas.request import Request
from streams.directory import Model


def smaller_of(admission: Admission, services: Services) -> Model | None:
    """The model that may answer in the place of the one that was asked for; None: no other may.

    It is a policy of the model, of its tenant, and of the request, which may forbid it. Who is in no hurry waits.
    """
    request = admission.request
    model, tenant = services.catalog.model(admission.model), services.directory.tenant(admission.scope.tenant_id)
    if model is None or tenant is None or not model.fallback or not tenant.may_fall_back:
        return None
    if not request.fallback or may_wait(request) or _speaks_in_tokens(request):
        return None
    return services.catalog.model(model.fallback)


def _speaks_in_tokens(request: Request) -> bool:
    """Those of another model may be others."""
    sampling = request.sampling
    return isinstance(request.prompt, list) or bool(
        sampling.logit_bias or sampling.stop_token_ids or sampling.allowed_token_ids
    )


async def answered_by(model: Model, admission: Admission, services: Services) -> Admission | None:
    """The request as this model would answer it, within what is reserved; None: it does not take it, or its tenant may
    not use it. Raises QuotaUnavailable.
    """
    request = admission.request
    found = await validated(request.model_copy(update={"model": model.name}), services)
    if not isinstance(found, Admission):
        return None
    room = (admission.reserved_tokens - len(found.prompt_token_ids)) // request.choices
    max_tokens = min(found.max_tokens, room)
    if admission.brownout is not None:
        max_tokens = min(max_tokens, admission.brownout.max_tokens)
    if max_tokens < max(request.sampling.min_tokens, 1):
        return None
    return _as_in(found, admission).model_copy(update={"max_tokens": max_tokens})


def stand_in(admission: Admission, reason: FallbackReason | None) -> StandIn | None:
    """What is stored of it, so that it is answered alike whenever it comes again."""
    return None if reason is None else StandIn(model=admission.model, max_tokens=admission.max_tokens, reason=reason)


async def as_decided(admission: Admission, decided: Decided, services: Services) -> Admission | None:
    """As the model answers that was decided on; None where that cannot be said any more. Raises QuotaUnavailable."""
    if admission.fallback is None and decided.decision.stand_in is None:
        return admission
    found = await readmitted(admission.request, decided, services)
    return None if found is None else _as_in(found, admission)


def _as_in(found: Admission, admission: Admission) -> Admission:
    """The admission, but for what is of the model."""
    of_model = ("model", "pool", "prompt_token_ids", "input_ends", "max_tokens", "fallback")
    return admission.model_copy(update={name: getattr(found, name) for name in of_model})
