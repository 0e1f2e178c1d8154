"""One of three brokers is killed under traffic, the one that is needed most, and its groups are handed back to it when
it has returned: nothing is lost or doubled, nobody's connection is cut, and nothing that serves them ends.

`python -m benchmarks three_brokers` strikes more often, and says how long streams pause.
"""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.brokers import deal
from tests.chaos.run import OPTIONS, run
from tests.chaos.schedule import Kind

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]


def test_the_loss_of_a_broker_loses_nothing_and_cuts_nobody_off(tmp_path: Path) -> None:
    options = replace(OPTIONS, workers=1, admission=1, gateways=1, brokers=3)
    done = run(tmp_path, lambda stack: islice(deal(stack, rounds=1), 2), options, clients=4)
    assert done.stopped == ""
    assert [struck.fault.kind for struck in done.struck] == [Kind.KILL, Kind.MOVE]
    assert done.verdict.violations == []
    assert done.verdict.endings["completed"]
    assert [answer.left for answer in done.answers if answer.cut] == []
    [killed] = done.struck[0].fault.processes
    serving = ("gateway-1", "admission-1", "worker-1", "post-safety")
    assert {name: done.restarts[name] for name in (*serving, killed)} == {**dict.fromkeys(serving, 0), killed: 1}
