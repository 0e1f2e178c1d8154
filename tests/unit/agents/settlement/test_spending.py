"""What is spent is told before a commit; budgets that are nearly spent are told, and what fits no more is cancelled."""

from collections.abc import Iterator
from threading import Event

import pytest

from agents.admission.spent_recovery import SpentReading, SpentRebuild
from agents.quota.beside import Held
from agents.quota.charges import spent_of
from agents.quota.port import EpochLost
from agents.settlement import core
from agents.settlement.core import REMEMBERED_MS
from schemas.alert import Alert
from schemas.base import Scope
from schemas.control import CONTROL, Cancel
from schemas.endings import EndingCode
from schemas.month import Month
from schemas.spent import SpentTotal
from schemas.usage import UsageEvent
from streams import price_list
from streams.directory import ApiKey, Budget, Tenant
from streams.log.port import LogError
from streams.price_list import told_of, wait_for_prices
from streams.pricing import PriceBook, PriceRow
from tests.unit.agents.settlement.settlement_story import LIMITS, NOW, Story, usage

PRICE = PriceRow(
    model="m", currency="USD", valid_from_ms=0, uncached_input_pico=10_000_000, cached_input_pico=1_000_000,
    output_pico=20_000_000, reasoning_pico=20_000_000,
)  # fmt: skip
LINE_NANO = (5 * 10_000_000 + 3 * 1_000_000 + 42 * 20_000_000) // 1_000
"""Of one `usage()`: a little below a million nano-currency."""
MONTH = Month.at(NOW)
TENANT = Tenant(
    tenant_id="acme", limits=LIMITS, budget=Budget(amount="0.01", thresholds=[50, 100]),
    project_budgets={"default": Budget(amount="0.003", hard=False)},
    api_keys=[ApiKey(key_id="k", sha256="0" * 64, budget=Budget(amount="0.002"))],
)  # fmt: skip


@pytest.fixture
def story() -> Iterator[Story]:
    story = Story(TENANT, [PRICE])
    yield story
    story.loop.close()


def spent(story: Story, account: str = "tenant") -> int:
    return story.loop.run(story.quota.sums("acme", str(MONTH), "USD")).of(account).spent


def totals(story: Story) -> list[SpentTotal]:
    return [SpentTotal.model_validate_json(r.value or b"") for r in story.log.records(story.topics.spent.name)]


def alerts(story: Story) -> list[Alert]:
    return [Alert.model_validate_json(r.value or b"") for r in story.log.records(story.topics.alerts.name)]


def cancels(story: Story) -> list[str]:
    said = [CONTROL.validate_json(r.value or b"") for r in story.log.records(story.topics.control.name)]
    assert all(isinstance(each, Cancel) and each.code is EndingCode.BUDGET_EXHAUSTED for each in said)
    return [each.response_id for each in said]


def reading_of(story: Story, *, commits_of: Story | None = None) -> SpentReading:
    settlement = (commits_of or story).log
    story.prices.take(told_of(PRICE))
    return SpentReading(
        story.topics, story.prices, lambda: story.log.consumer(None, "reader"),
        lambda: settlement.consumer("settlement", "looks"), REMEMBERED_MS, lambda: story.now_ms, lambda: story.log_id,
    )  # fmt: skip


def read_back(story: Story, *, commits_of: Story | None = None) -> list[SpentTotal]:
    """By a store that has lost its memory."""
    return reading_of(story, commits_of=commits_of).read(5.0, story.now_ms + 1).totals


def of_key(response_id: str, key: str = "k") -> UsageEvent:
    return usage(response_id).model_copy(update={"scope": Scope(tenant_id="acme", key_id=key)})


def test_what_was_spent_is_told_before_it_is_committed(story: Story) -> None:
    story.reserve()
    story.used(of_key("r1"))
    story.settle()
    assert story.committed == 1
    [total] = totals(story)
    assert (total.partition, total.offset, total.month) == (0, 1, "2026-09")
    assert total.nano == {"tenant": LINE_NANO, "project:default": LINE_NANO, "key:k": LINE_NANO}


def test_who_dies_after_settling_has_its_successor_tell_what_was_spent(story: Story) -> None:
    story.reserve()
    story.used(of_key("r1"))
    counted = spent_of(of_key("r1"), PriceBook([PRICE]), 0, 0)
    story.loop.run(story.quota.settle("acme", LIMITS, "r1", 0, 50, counted))
    story.settle()
    assert spent(story) == LINE_NANO, "once"
    assert [total.nano["tenant"] for total in totals(story)] == [LINE_NANO]
    assert story.committed == 1


def test_a_busy_member_tells_once_a_second_and_commits_no_more_often(story: Story) -> None:
    for number in range(5):
        story.used(usage(f"r{number}"))
        story.settle(2)
    assert story.committed == 1, "the others wait for their sums"
    story.now_ms += 1_000
    story.settle(1)
    assert story.committed == 5
    assert [(total.offset, total.nano["tenant"]) for total in totals(story)] == [(1, LINE_NANO), (5, 5 * LINE_NANO)]


def test_sums_that_were_lost_before_they_were_told_are_not_committed(story: Story) -> None:
    """Nothing new comes, so that they are what is asked of the store first."""
    story.used(usage("r0"))
    story.settle(1)
    story.used(usage("r1"))
    story.settle(1)
    story.now_ms += 1_000
    story.quota.error, story.quota.failures = EpochLost, 3
    story.settle(3)
    assert (story.committed, len(totals(story))) == (1, 1), "neither told nor committed"
    story.settle(1)
    assert story.committed == 2
    assert totals(story)[-1].nano["tenant"] == 2 * LINE_NANO


def test_sums_are_not_told_below_what_they_count(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member settled five and died before its commit. Its successor tells them when it has settled them again."""
    monkeypatch.setattr(core, "MAX_RECORDS", 1)
    for number in range(5):
        story.used(usage(f"r{number}"))
        counted = spent_of(usage(f"r{number}"), PriceBook([PRICE]), 0, number, story.log_id)
        story.loop.run(story.quota.settle("acme", LIMITS, f"r{number}", 0, 50, counted))
    for _ in range(4):
        story.settle(1)
        story.now_ms += 1_000
    assert (story.committed, totals(story)) == (None, [])
    assert [total.nano["tenant"] for total in read_back(story)] == [5 * LINE_NANO], "each once, were the store lost now"
    story.settle(1)
    assert story.committed == 5
    assert [(total.offset, total.nano["tenant"]) for total in totals(story)] == [(5, 5 * LINE_NANO)]


def test_a_new_log_of_usage_takes_nothing_away_from_what_was_spent(story: Story) -> None:
    """The commits, and the offsets of the sums, are those of the log before: beyond the end of this one."""
    for number in range(3):
        story.used(usage(f"r{number}"))
    story.settle()
    assert story.committed == 3
    after = Story(TENANT, [PRICE])
    after.log_id = "cluster/second"
    for total in totals(story):
        after.log.append(after.topics.spent.name, total.encode(), key=total.key)
    after.used(usage("r3"))
    [total] = read_back(after, commits_of=story)
    assert (total.offset, total.log_id, total.nano["tenant"]) == (1, "cluster/second", 4 * LINE_NANO)
    after.quota.told, after.quota.counted_to = story.quota.told, story.quota.counted_to
    after.settle()
    assert after.committed == 1, "it waits for no offset of the log before"
    assert (totals(after)[-1].log_id, totals(after)[-1].nano["tenant"]) == ("cluster/second", 4 * LINE_NANO)
    after.loop.close()


def test_what_is_not_charged_counts_of_no_budget_and_what_has_no_price_neither(story: Story) -> None:
    story.used(usage("r1", billable=False))
    story.used(usage("r2").model_copy(update={"model": "unpriced"}))
    story.settle()
    assert spent(story) == 0
    assert story.committed == 2
    assert totals(story) == []


def test_what_was_settled_without_a_price_is_told_of_nothing_when_it_is_settled_again(story: Story) -> None:
    """Who settled it died before its commit; its price has come since."""
    story.reserve()
    story.used(usage("r1"))
    story.loop.run(story.quota.settle("acme", LIMITS, "r1", 0, 50, None))
    story.settle()
    assert (spent(story), totals(story), story.committed) == (0, [], 1)


def test_a_price_that_came_since_is_read_before_usage_is_taken_for_unpriced(story: Story) -> None:
    story.settle(1)
    story.log.append(story.topics.prices.name, told_of(PRICE.starting_at(NOW)).encode())
    story.used(usage("r1"))
    story.settle()
    assert spent(story) == LINE_NANO


class _Prices:
    """Of a log that answers after so many calls, or whose operator says that nobody may read it."""

    def __init__(self, failures: int, *, retriable: bool = True) -> None:
        self.failures, self.retriable = failures, retriable

    def read_on(self) -> None:
        if self.failures:
            self.failures -= 1
            raise LogError("no broker", retriable=self.retriable)

    def read_again(self) -> bool:
        return False


def test_who_begins_before_the_log_waits_for_its_prices(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price_list, "RETRY_S", 0)
    reader = _Prices(failures=3)
    wait_for_prices(story.spending(reader).read_prices, Event())
    assert reader.failures == 0
    with pytest.raises(LogError):
        wait_for_prices(story.spending(_Prices(failures=1, retriable=False)).read_prices, Event())
    stopping = Event()
    stopping.set()
    wait_for_prices(story.spending(_Prices(failures=1)).read_prices, stopping)


def test_what_is_settled_behind_the_end_of_its_month_counts_for_that(story: Story) -> None:
    story.now_ms = MONTH.end_ms + 10_000
    story.used(usage("r1"))
    story.settle()
    assert spent(story) == LINE_NANO
    assert totals(story)[0].month == str(MONTH)


def test_each_threshold_is_told_once_whoever_looks_and_again_when_the_budget_changes(story: Story) -> None:
    for number in range(3):
        story.used(of_key(f"r{number}"))
    story.settle()
    told = {(alert.figures["account"], alert.figures["threshold_percent"]) for alert in alerts(story)}
    assert told == {("project:default", 50), ("project:default", 80), ("key:k", 50), ("key:k", 80), ("key:k", 100)}
    for _ in range(3):
        story.now_ms += 10_000
        story.settle()
    assert len(alerts(story)) == 5
    before = {alert.event_id for alert in alerts(story)}
    story.directory.all["acme"] = TENANT.model_copy(update={"budget": Budget(amount="0.005", thresholds=[50])})
    story.now_ms += 10_000
    story.settle()
    [new] = [alert for alert in alerts(story) if alert.event_id not in before]
    assert (new.tenant_id, new.figures["spent"], new.since_ms) == ("acme", f"{3 * LINE_NANO / 10**9}", MONTH.start_ms)


def test_the_month_before_is_looked_after_for_as_long_as_it_may_be_settled(story: Story) -> None:
    story.now_ms = MONTH.end_ms + 10_000
    for number in range(3):
        story.used(of_key(f"r{number}"))
    story.settle()
    assert {alert.figures["month"] for alert in alerts(story)} == {str(MONTH)}
    told = len(alerts(story))
    story.directory.all["acme"] = TENANT.model_copy(update={"budget": Budget(amount="0.001")})
    story.now_ms = MONTH.end_ms + REMEMBERED_MS
    story.settle()
    assert len(alerts(story)) == told, "what is changed later is of the months to come"


def test_an_alert_whose_note_was_lost_comes_again_with_its_id(story: Story) -> None:
    for number in range(3):
        story.used(of_key(f"r{number}"))
    story.settle()
    story.quota.noted.clear()
    story.now_ms += 10_000
    story.settle()
    assert len(alerts(story)) == 2 * len({alert.event_id for alert in alerts(story)})


def test_when_a_budget_is_lowered_the_newest_are_cancelled_until_the_rest_fits(story: Story) -> None:
    for number in range(4):
        story.quota.held[f"r{number}"] = Held(str(MONTH), "USD", 2_000_000, "default", "other", NOW + number)
    story.settle()
    assert cancels(story) == []
    story.directory.all["acme"] = TENANT.model_copy(update={"budget": Budget(amount="0.0045")})
    story.now_ms += 10_000
    story.settle()
    assert cancels(story) == ["r3", "r2"]
    story.now_ms += 10_000
    story.settle()
    assert cancels(story) == ["r3", "r2"], "who was cancelled counts as gone until it is settled"


def test_a_soft_budget_cancels_nothing(story: Story) -> None:
    story.directory.all["acme"] = Tenant(tenant_id="acme", limits=LIMITS, budget=Budget(amount="0", hard=False))
    story.quota.held["r1"] = Held(str(MONTH), "USD", 1, "default", "k", NOW)
    story.settle()
    assert cancels(story) == []


def test_what_settlement_has_not_committed_is_read_again_where_the_store_was_lost(story: Story) -> None:
    story.used(of_key("r1"))
    story.used(of_key("r2"), partition=1)
    story.settle()
    for response_id in ("r3", "r3", "r4"):
        story.used(of_key(response_id))
    story.used(b"{")
    found = {(total.partition, total.offset): total.nano["key:k"] for total in read_back(story)}
    assert found == {(0, 5): 3 * LINE_NANO, (1, 1): LINE_NANO}


def test_what_was_charged_lately_is_known_and_counts_no_second_time(story: Story) -> None:
    story.used(usage("long ago"))
    story.now_ms += 60_000
    story.used(usage("settled"))
    story.settle()
    story.used(usage("r1"))
    read = reading_of(story).read(5.0, story.now_ms)
    assert read.charged == {"settled/0", "r1/0"}
    assert [total.nano["tenant"] for total in read.totals] == [3 * LINE_NANO]


def test_a_group_that_has_committed_nothing_yet_has_all_of_usage_read(story: Story) -> None:
    story.settlement.close()
    story.used(of_key("r1"))
    [total] = read_back(story)
    assert (total.offset, total.nano["tenant"]) == (1, LINE_NANO)


def test_a_store_that_lost_its_memory_is_given_back_what_the_log_proves() -> None:
    """The sums that were told, and behind their offset each choice once."""
    rebuild, book = SpentRebuild(), PriceBook([PRICE])
    scope = Scope(tenant_id="acme", project_id="")
    for offset, nano in ((40, 7_000), (30, 5_000)):
        rebuild.total(
            SpentTotal(scope=scope, month=str(MONTH), currency="USD", partition=1, offset=offset, nano={"tenant": nano})
        )
    for offset, response_id in ((39, "told"), (40, "r1"), (41, "r2"), (42, "r1")):
        counted = spent_of(of_key(response_id), book, 1, offset)
        assert counted is not None
        rebuild.usage(of_key(response_id), counted)
    [total] = rebuild.totals({1: 43})
    assert total.offset == 43
    assert total.nano == {"tenant": 7_000 + 2 * LINE_NANO, "project:default": 2 * LINE_NANO, "key:k": 2 * LINE_NANO}
