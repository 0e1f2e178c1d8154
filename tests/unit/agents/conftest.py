import pytest

from tests.unit.agents.admission.world import World


@pytest.fixture
def world() -> World:
    """Admission with a worker that has told of itself."""
    world = World()
    world.beat()
    return world
