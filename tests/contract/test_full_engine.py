"""A real vLLM whose batch or memory is full, before the worker's own scheduler."""

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from benchmarks.one_vllm import BATCH, BY_COUNT, BY_MEMORY, LONG, POLICIES, SHORT, STATIC, OneVllm, jobs
from tests.contract.engines import VLLM_MARKS

pytestmark = [*VLLM_MARKS, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one() -> AsyncIterator[OneVllm]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    one = OneVllm()
    await one.start()
    yield one
    await one.close()


async def test_let_in_by_memory_nobodys_is_taken_back_which_it_is_by_count(one: OneVllm) -> None:
    waiting = jobs(random.Random(7), 2 * BATCH, LONG)
    by_count = await one.answer(POLICIES[BY_COUNT](), waiting)
    by_memory = await one.answer(POLICIES[BY_MEMORY](), waiting)
    assert by_count.answered == by_memory.answered == len(waiting)
    assert by_count.preemptions > 0 == by_memory.preemptions


async def test_as_answers_end_others_take_their_slots_which_a_static_batch_leaves_unused(one: OneVllm) -> None:
    waiting = jobs(random.Random(7), 3 * BATCH, SHORT)
    static = await one.answer(POLICIES[STATIC](), waiting)
    ours = await one.answer(POLICIES[BY_MEMORY](), waiting)
    assert ours.answered == static.answered == len(waiting)
    assert ours.used > 0.7 > static.used
