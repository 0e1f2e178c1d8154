"""Wires and runs one admission worker."""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import NoReturn

import faust
import structlog
import uvloop

from agents.admission.app import AdmissionApp
from agents.admission.billed import Billing
from agents.admission.brownout import Brownouts, Decider
from agents.admission.budgets import PricesUnread, beside_of_opened
from agents.admission.cancels import Cancels
from agents.admission.long_prompts import LongPrompts
from agents.admission.pipeline import Pipeline, places_among
from agents.admission.publisher import Publisher, PublishFailed
from agents.admission.recovery import WINDOW_MS, Recovery, RecoveryFailed
from agents.admission.refusals import Buried
from agents.admission.routing import QueueBound, WorkersView
from agents.admission.services import Services
from agents.admission.sources import SourceReader
from agents.admission.spent_recovery import SpentRead, SpentReading
from agents.admission.watchdog import Excuses, Watchdog
from agents.admission.workers_reader import WorkersReader
from agents.quota.port import QuotaStore, QuotaUnavailable
from agents.quota.store import RedisQuota
from agents.safety.prompt_policies import PromptPolicies
from streams.chat_tokenizer import tokenizer_of
from streams.clocks import now_ms
from streams.directory import ModelCatalog, TenantDirectory
from streams.entry_point import EXIT_FAILED, exit_code
from streams.garbage import collect_seldom
from streams.health import HealthServer
from streams.keyring import Keyring, Purpose
from streams.log.kafka import QUIET_FETCH_WAIT_MS, KafkaConsumer, log_id
from streams.log.port import LogConsumer, TopicPartition
from streams.price_list import PriceList
from streams.redis_client import connect_quota
from streams.settings import Settings
from streams.toml_directory import SettingsCatalog, TomlTenantDirectory
from streams.topics import Topics

RECOVERY_PATIENCE_S = 120.0
"""Without progress; reading a day of `generated` may take much longer."""
EPOCH_LOOK_S = 5.0
DECIDE_EVERY_S = 1.0
UNREADABLE_EVERY_S = 1.0
_log = structlog.get_logger()


def end_process(why: str, error: Exception | None = None) -> NoReturn:
    """At once: an orderly stop would go on committing, and may hang in what has failed."""
    _log.error("admission_ends", why=why, error=None if error is None else f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    os._exit(EXIT_FAILED)


class _Worker(faust.Worker):  # type: ignore[misc]
    """Faust's worker with this project's logging left in place."""

    def _setup_logging(self) -> None:
        """`configure_logging` has done it."""

    def _setproctitle(self, info: str, *, ident: str = "") -> None:
        """The command line says enough."""


def run(settings: Settings) -> int:
    """Runs until a signal. Returns the exit code. Raises SettingsError."""
    request_secrets = settings.keyring(Purpose.REQUEST_SIGNING)
    pseudonym_secret = settings.keyring(Purpose.END_USER_PSEUDONYMS).current
    directory = TomlTenantDirectory(settings.tenants_file)
    catalog = SettingsCatalog(settings)
    workers = WorkersView()
    levels = Brownouts(settings.brownout, settings.topics.pools)
    cancels = Cancels()
    billing = billing_of(settings)
    excuses = Excuses()
    quota = RedisQuota(connect_quota(settings.redis), settings.region)

    def independent_reader() -> LogConsumer:
        return KafkaConsumer(settings.kafka, None, "admission-reader", fetch_wait_ms=QUIET_FETCH_WAIT_MS)

    sources = SourceReader(independent_reader)
    prices = PriceList()
    recovery = _recovery(settings, quota, directory, catalog, prices, excuses, independent_reader)

    def wire(publisher: Publisher) -> Pipeline:
        services = _services(
            settings, request_secrets, pseudonym_secret, directory, catalog, quota, workers, levels, cancels,
            excuses, sources, prices, billing,
        )  # fmt: skip
        return Pipeline(
            services, publisher, recovery.run, settings.admission.max_attempts,
            places=places_among(settings.admission.in_flight),
            generation=lambda: int(admission.faust.consumer_generation_id),
        )  # fmt: skip

    admission = AdmissionApp(settings, wire, lambda error: end_process("an event could not be finished", error))

    reader = WorkersReader(
        independent_reader,
        settings.topics,
        workers,
        levels,
        cancels,
        lambda error: end_process("workers cannot be read", error),
        prices,
        billing,
    )

    _set_timers(admission, quota, recovery, reader)
    decider = Decider(settings.brownout, settings.topics.pools, levels)
    _decide_levels(admission, settings.topics, decider, workers, reader)
    watchdog = _watchdog(settings, admission, excuses, independent_reader)

    def ready() -> str | None:
        if not reader.caught_up.is_set():
            return "reading workers"
        return None if admission.owned else "no partitions"

    health = HealthServer(settings.health_host, settings.health_port, ready)
    _log.info("admission_starts", health_port=health.port, placement=settings.admission.placement)
    reader.start()
    watchdog.start()
    try:
        return _run_until_signal(admission)
    finally:
        watchdog.close()
        sources.close()
        reader.close()
        health.close()


def _recovery(
    settings: Settings, quota: RedisQuota, directory: TenantDirectory, catalog: ModelCatalog, prices: PriceList,
    excuses: Excuses, new_reader: Callable[[], LogConsumer],
) -> Recovery:  # fmt: skip
    """While it gets on, nothing else is expected to."""

    def settlements() -> LogConsumer:
        return KafkaConsumer(settings.kafka, f"{settings.region}.settlement", "admission-looks-at-settlement")

    spent = SpentReading(
        settings.topics, prices, new_reader, settlements, WINDOW_MS, now_ms,
        lambda: log_id(settings.kafka, settings.topics.usage.name),
    )  # fmt: skip

    def read_spent(patience_s: float, since_ms: int) -> SpentRead:
        if not prices.are_read:
            raise PricesUnread("prices are not read yet")
        return spent.read(patience_s, since_ms)

    return Recovery(
        quota, directory, new_reader, settings.topics.generated.name, RECOVERY_PATIENCE_S, now_ms,
        on_progress=lambda: excuses.hold("", 2 * RECOVERY_PATIENCE_S), on_end=lambda: excuses.end(""),
        beside_of=lambda opened: beside_of_opened(opened, directory, catalog, prices), read_spent=read_spent,
    )  # fmt: skip


def _watchdog(
    settings: Settings, admission: AdmissionApp, excuses: Excuses, new_reader: Callable[[], LogConsumer]
) -> Watchdog:
    return Watchdog(
        lambda: KafkaConsumer(settings.kafka, admission.group, "admission-watchdog"),
        new_reader,
        lambda: admission.owned,
        excuses,
        settings.admission.stall_s,
        end_process,
    )


def billing_of(settings: Settings) -> Billing:
    """As `usage` is kept in this region."""
    kept_ms = settings.topics.usage.retention_ms
    assert kept_ms is not None, "usage is no compacted topic"
    return Billing(round(kept_ms * settings.admission.unbilled_share), now_ms)


def _services(
    settings: Settings, request_secrets: Keyring, pseudonym_secret: bytes, directory: TenantDirectory,
    catalog: ModelCatalog, quota: QuotaStore, workers: WorkersView, levels: Brownouts, cancels: Cancels,
    excuses: Excuses, sources: SourceReader, prices: PriceList, billing: Billing,
) -> Services:  # fmt: skip
    return Services(
        topics=settings.topics,
        request_secrets=request_secrets.accepted,
        pseudonym_secret=pseudonym_secret,
        ids=settings.response_ids,
        directory=directory,
        catalog=catalog,
        tokenizers={model.name: tokenizer_of(model) for model in catalog.models()},
        quota=quota,
        workers=workers,
        queue_bound=QueueBound(
            settings.admission.max_queued_tokens,
            settings.admission.max_queued_requests,
            settings.lanes,
            settings.admission.lowered_from,
        ),
        prompt_policies=PromptPolicies(),
        prices=prices,
        brownout=levels,
        billing=billing,
        cancels=cancels,
        trust_window_ms=settings.admission.trust_window_ms,
        clock_ms=now_ms,
        prefix_load_excess=settings.admission.prefix_load_excess,
        long_prompts=LongPrompts(settings.admission.in_flight),
        max_moves=settings.admission.max_moves,
        read_source=sources.read,
        on_hold=excuses.hold,
    )


def _set_timers(admission: AdmissionApp, quota: RedisQuota, recovery: Recovery, reader: WorkersReader) -> None:
    async def look_for_the_epoch() -> None:
        """Rebuilds it where none holds. Settlement waits for it too, and there may be no request that would notice."""
        try:
            if not await quota.keep_epoch(now_ms()):
                await recovery.run()
        except (QuotaUnavailable, RecoveryFailed) as error:
            # Requests wait meanwhile (`agents.admission.pipeline`).
            _log.warning("quota_store_not_ready", error=str(error))

    admission.faust.task(look_for_the_epoch)
    admission.faust.timer(EPOCH_LOOK_S)(look_for_the_epoch)

    @admission.faust.timer(UNREADABLE_EVERY_S)  # type: ignore[untyped-decorator]
    async def bury_unreadable() -> None:
        while reader.unreadable and not admission.faust.should_stop:
            record, error = reader.unreadable.popleft()
            buried = Buried(error.reason, error.detail)
            await admission.pipeline.publication.bury(record, "admission", buried, now_ms())


def _decide_levels(
    admission: AdmissionApp, topics: Topics, decider: Decider, workers: WorkersView, reader: WorkersReader
) -> None:
    """Whoever owns the first partition of `requests` decides for the region."""
    owned = TopicPartition(topics.requests.name, 0)

    @admission.faust.timer(DECIDE_EVERY_S)  # type: ignore[untyped-decorator]
    async def decide() -> None:
        if owned not in admission.owned or not reader.caught_up.is_set() or admission.faust.should_stop:
            decider.rest()
            return
        at_ms = now_ms()
        for change in decider.changes({pool: workers.samples(pool, at_ms) for pool in topics.pools}, at_ms):
            try:
                await admission.pipeline.publisher.publish(topics.brownout.name, change.encode(), key=change.pool)
            except PublishFailed as error:
                # Decided anew in a second.
                _log.warning("brownout_not_written", pool=change.pool, error=str(error), repeats=True)
            else:
                _log.warning("brownout_level", pool=change.pool, brownout_level=change.level, why=change.why)


def _run_until_signal(admission: AdmissionApp) -> int:
    """Returns the exit code."""
    # A prompt has one text at a time: a pool of threads would only make the event loop wait for another thread.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        # Faust's consumer thread makes a loop of its own, by the policy.
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        collect_seldom()
        worker = _Worker(admission.faust, quiet=True, loglevel="WARN", loop=uvloop.new_event_loop())
        worker.execute_from_commandline()
    except SystemExit as stop:
        # How Faust's worker always ends: 0 after a signal.
        return 0 if stop.code == 0 else EXIT_FAILED
    return EXIT_FAILED


def main() -> int:
    return exit_code("admission", run)


if __name__ == "__main__":
    sys.exit(main())
