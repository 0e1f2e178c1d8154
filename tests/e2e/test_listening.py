"""A stack that nobody has told otherwise is reached from its own machine alone: no broker, store, engine, health page
or library of any process listens anywhere else.
"""

import pytest

from deploy.local.runner import Stack
from tests.listening import listens_beyond_loopback

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_no_process_of_a_stack_listens_beyond_loopback(stack: Stack) -> None:
    pids = [record.pid for record in stack.processes() if record.pid is not None]
    assert len(pids) > 6
    assert listens_beyond_loopback(pids) == []
