"""What an admission tells those who come after it."""

import pytest

from schemas.generated import Opened
from schemas.request import AdmittedRequest
from tests.unit.agents.admission.world import World


@pytest.mark.parametrize("policy", ["cancel", "continue"])
async def test_what_becomes_of_a_response_without_viewers_stands_in_opened_and_in_the_work(policy: str) -> None:
    world = World()
    world.beat()
    await world.pipeline.handle_request(world.record(world.request(on_disconnect=policy)))
    [(_, opened)] = world.log.of(Opened, "local.generated")
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.default.standard")
    assert (opened.on_disconnect, work.on_disconnect) == (policy, policy)
