"""A process dies where it was told to, and nowhere before."""

from types import SimpleNamespace

import pytest

from billing_jobs import store
from billing_jobs.invoices.tables import InvoiceTables
from streams.log.kafka import KafkaConsumer
from tests.billing_kills import points
from tests.billing_kills.points import OF_BATCHES, OF_CLOSINGS, RECORDED, install


class Died(Exception):
    """In place of the process."""


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in order, by billing's own calls in place of which there are others."""
    done: list[str] = []

    def noting(name: str) -> object:
        return lambda *arguments: done.append(name if name != "insert_rows" else arguments[1].table)

    def die() -> None:
        raise Died

    for place, name in (
        (KafkaConsumer, "commit"), (store.ClickHouseStore, "_open_hours"), (store, "insert_rows"),
        (InvoiceTables, "count"), (InvoiceTables, "add"), (InvoiceTables, "decide"), (InvoiceTables, "record"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, noting(name))
    monkeypatch.setattr(points, "die", die)
    return done


def work() -> None:
    """A batch, and a closing, in their steps."""
    KafkaConsumer.commit(None, {})  # type: ignore[arg-type]
    store.ClickHouseStore._open_hours(None, None, ())  # type: ignore[arg-type]
    for table in ("usage_events", "compute_records", "delivered_counts", "worker_presence", "billing_batches"):
        vars(store)["insert_rows"](None, SimpleNamespace(table=table), {})
    for name in ("count", "add", "decide", "record"):
        getattr(InvoiceTables, name)()


LAST_DONE = {
    "read": "record",
    "cut committed": "commit",
    "hours opened": "_open_hours",
    "usage stored": "usage_events",
    "computations stored": "compute_records",
    "deliveries stored": "delivered_counts",
    "presence stored": "worker_presence",
    "batch stored": "billing_batches",
    "usage counted": "count",
    "entries added": "add",
    "month closed": "decide",
    RECORDED: "record",
}


@pytest.mark.parametrize("point", LAST_DONE)
def test_it_dies_behind_that_step_of_the_so_manieth_batch(point: str, did: list[str]) -> None:
    install(point, 2)
    work()
    steps = len(did)
    with pytest.raises(Died):
        work()
    assert did[-1] == LAST_DONE[point]
    assert steps <= len(did) <= 2 * steps


def test_every_point_is_tried() -> None:
    assert {*LAST_DONE, "amid an insert"} == {*OF_BATCHES, *OF_CLOSINGS, RECORDED}
