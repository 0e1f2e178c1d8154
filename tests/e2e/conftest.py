"""One real stack with the simulated engine, of models that chat and that embed, for all end-to-end stories."""

from collections.abc import Iterator

import openai
import pytest

from deploy.local.plan import EMBEDDINGS
from deploy.local.runner import Stack
from tests.e2e.stacks import openai_client, prepared, until_idle


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with prepared(tmp_path_factory.mktemp("e2e"), added=(EMBEDDINGS,), ends_in_order=True) as stack:
        yield stack
    assert list(stack.data.scratch.iterdir()) == [], "what a stop leaves behind"


@pytest.fixture
def demo(stack: Stack) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, of the demo tenant."""
    with openai_client(stack) as client:
        yield client


@pytest.fixture
def idle(stack: Stack) -> None:
    """Nothing of an earlier story is generating any more."""
    until_idle(stack)
