"""Where an admission may go as the pools stand now, and which partitions of one it gets: when it is routed, and each
time it is moved.
"""

from collections.abc import Iterable, Sequence

from agents.admission.route_plan import Looked, Option
from agents.admission.routing import Load, Route, choose
from agents.admission.services import Services
from agents.admission.validation import ask_of
from schemas.admission import Admission
from schemas.request import Lane
from streams.directory import PoolWeights


def option_of(admission: Admission, pools: Iterable[str], services: Services, *, also_asking: bool = False) -> Option:
    """These pools, and what the request comes to there with the admission's model. `also_asking`: as
    `WorkersView.live`.
    """
    tenant_id, now_ms = admission.scope.tenant_id, services.clock_ms()
    model = services.catalog.model(admission.model)
    looked = [
        Looked(services.catalog.pool(name), services.workers.live(name, now_ms, tenant_id, also_asking=also_asking))
        for name in pools
    ]
    ask = ask_of(admission, services.directory.tenant(tenant_id))
    return Option(looked, ask, PoolWeights() if model is None else model.weights)


def route_in(loads: Sequence[Load], lane: Lane, admission: Admission, services: Services) -> Route:
    """A worker's partitions of the lane and of `generated`."""
    counts = services.topics.counts
    return choose(
        loads, lane, admission.response_id, lane_partitions=counts.lane, generated_partitions=counts.generated,
        cache_id=admission.cache_id, excess=services.prefix_load_excess,
    )  # fmt: skip
