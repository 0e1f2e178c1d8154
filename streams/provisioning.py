"""Creates the topics of the table on a cluster, and refuses a cluster that differs from the table."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from streams.log.kafka import client_config, log_error, settled
from streams.log.port import LogError
from streams.settings import KafkaSettings, SettingsError
from streams.topics import Topic

_CALL_TIMEOUT_S = 10.0
_RETRY_S = 0.05
_BOUND = "retention.bytes"
"""Any bound of an operator's own will do; where there is none, the table's is set."""
_NO_BOUND = "-1"


@dataclass(frozen=True, slots=True)
class ProvisionReport:
    """Names, sorted: what was created now and what stood already."""

    created: tuple[str, ...]
    present: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicState:
    """What a cluster says about a topic. `replication_factor` is the smallest of its partitions."""

    partitions: int
    replication_factor: int
    config: dict[str, str]


class DriftError(Exception):
    """The cluster differs from the table. `differences`: one line each, sorted by topic."""

    def __init__(self, differences: Sequence[str]) -> None:
        super().__init__("\n".join(differences))
        self.differences = tuple(differences)


def differences(topic: Topic, config: dict[str, str], replication_factor: int, found: TopicState) -> list[str]:
    """What separates a topic of the cluster from the table, one line each."""
    wanted = {"partitions": str(topic.partitions), "replication factor": str(replication_factor), **config}
    actual = {
        "partitions": str(found.partitions),
        "replication factor": str(found.replication_factor),
        **found.config,
    }
    return [
        f"{topic.name}: {name} is {actual.get(name, 'unset')}, must be {value}"
        for name, value in wanted.items()
        if actual.get(name) != value and name != _BOUND
    ]


@dataclass(frozen=True, slots=True)
class Copies:
    """Of every topic: how many, and how many must have a record before it counts as written."""

    replicas: int
    min_insync: int


def copies(settings: KafkaSettings) -> Copies:
    """Raises SettingsError for a cluster whose operator has not said: one copy dies with its broker."""
    said = {
        "kafka.replication_factor": settings.replication_factor,
        "kafka.min_insync_replicas": settings.min_insync_replicas,
    }
    missing = [name for name, value in said.items() if value is None]
    if missing and not settings.is_on_loopback:
        lines = (f"{name}: is needed to provision {settings.bootstrap}; 3 and 2 survive a broker" for name in missing)
        raise SettingsError("\n".join(lines))
    return Copies(settings.replication_factor or 1, settings.min_insync_replicas or 1)


def topic_config(topic: Topic, wanted: Copies) -> dict[str, str]:
    """The topic-level settings that provisioning demands on this cluster."""
    return {**topic.config, "min.insync.replicas": str(wanted.min_insync)}


def wait_for_brokers(settings: KafkaSettings, timeout_s: float, wanted: int = 1) -> None:
    """Returns once a broker answers and knows of so many: fewer would take no topic of as many copies.

    Raises TimeoutError, with what was wrong last, such as a password.
    """
    heard = ""
    known = 0

    def hear(error: KafkaError) -> None:
        nonlocal heard
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says nothing of why
            heard = f": {error.str()}"

    admin = _admin(settings, hear)
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            known = len(admin.list_topics(timeout=1).brokers)
            if known >= wanted:
                return
        except KafkaException as error:
            if not log_error(error.args[0], "list topics").retriable:
                raise log_error(error.args[0], "list topics") from None
        admin.poll(0)  # what hears of errors
        if time.monotonic() >= deadline_s:
            who = f"{known} of {wanted} brokers" if known else "no broker"
            raise TimeoutError(f"{who} answered at {settings.bootstrap} within {timeout_s:g} s{heard}")
        time.sleep(_RETRY_S)


def provision(settings: KafkaSettings, topics: Sequence[Topic], timeout_s: float = 60) -> ProvisionReport:
    """Creates what is missing, exactly as the table says, and waits until every partition has a leader.

    Idempotent, and safe beside another process that provisions the same. Raises DriftError before anything is
    created when a topic stands differently, SettingsError, TimeoutError, LogError.
    """
    of_each = copies(settings)
    deadline_s = time.monotonic() + timeout_s
    admin = _admin(settings)
    wanted = {topic.name: topic for topic in topics}
    existing = _check(admin, of_each, wanted)
    _bound(admin, [topic for name, topic in wanted.items() if name in existing], existing)
    missing = [topic for name, topic in wanted.items() if name not in existing]
    created = _create(admin, of_each, missing)
    while not _usable(admin, wanted):
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"topics without a leader after {timeout_s:g} s")
        time.sleep(_RETRY_S)
    # Another process may have created them otherwise in between.
    _check(admin, of_each, {topic.name: topic for topic in missing})
    return ProvisionReport(tuple(sorted(created)), tuple(sorted(wanted.keys() - created)))


def _ignore(_error: KafkaError) -> None:
    """What fails is raised by the call that failed."""


def _admin(settings: KafkaSettings, on_error: Callable[[KafkaError], None] = _ignore) -> AdminClient:
    config: dict[str, object] = {**client_config(settings, "provisioning"), "log_level": 0, "error_cb": on_error}
    return AdminClient(config)  # type: ignore[arg-type]  # its stubs know of no callbacks


def _check(admin: AdminClient, of_each: Copies, wanted: dict[str, Topic]) -> dict[str, TopicState]:
    found = _describe(admin, wanted)
    drift = [
        line
        for name, state in sorted(found.items())
        for line in differences(wanted[name], topic_config(wanted[name], of_each), of_each.replicas, state)
    ]
    if drift:
        raise DriftError(drift)
    return found


def _bound(admin: AdminClient, topics: Sequence[Topic], found: dict[str, TopicState]) -> None:
    """Topics of a release that knew no bound get theirs."""
    changes = [
        ConfigResource(
            ResourceType.TOPIC,
            topic.name,
            incremental_configs=[
                ConfigEntry(_BOUND, str(topic.retention_bytes), incremental_operation=AlterConfigOpType.SET)
            ],
        )
        for topic in topics
        if topic.retention_bytes is not None and found[topic.name].config.get(_BOUND, _NO_BOUND) == _NO_BOUND
    ]
    if not changes:
        return
    try:
        for future in admin.incremental_alter_configs(changes, request_timeout=_CALL_TIMEOUT_S).values():
            future.result(_CALL_TIMEOUT_S)
    except KafkaException as error:
        raise log_error(error.args[0], "bound topics") from None


def _describe(admin: AdminClient, wanted: dict[str, Topic]) -> dict[str, TopicState]:
    # Whom it asks is any broker: there is no leader to find.
    return settled(lambda _may_take_s: _described(admin, wanted), lambda: None)


def _described(admin: AdminClient, wanted: dict[str, Topic]) -> dict[str, TopicState]:
    try:
        metadata = admin.list_topics(timeout=_CALL_TIMEOUT_S).topics
        existing = [name for name in wanted if name in metadata]
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in existing]
        futures = admin.describe_configs(resources, request_timeout=_CALL_TIMEOUT_S) if resources else {}
        configs = {
            resource.name: {name: entry.value for name, entry in future.result(_CALL_TIMEOUT_S).items()}
            for resource, future in futures.items()
        }
    except KafkaException as error:
        failure = log_error(error.args[0], "describe topics")
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            # One broker has named it, and the one that was asked about it has not heard of it yet.
            failure = LogError(str(failure), retriable=True)
        raise failure from None
    return {
        name: TopicState(
            len(metadata[name].partitions),
            min((len(partition.replicas) for partition in metadata[name].partitions.values()), default=0),
            configs[name],
        )
        for name in existing
    }


def _create(admin: AdminClient, of_each: Copies, topics: Sequence[Topic]) -> set[str]:
    if not topics:
        return set()
    created = set()
    requests = [
        NewTopic(topic.name, topic.partitions, of_each.replicas, config=topic_config(topic, of_each))
        for topic in topics
    ]
    for name, future in admin.create_topics(requests, request_timeout=_CALL_TIMEOUT_S).items():
        try:
            future.result(_CALL_TIMEOUT_S)
            created.add(name)
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if cause.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise log_error(cause, f"create {name}") from None
    return created


def _usable(admin: AdminClient, wanted: dict[str, Topic]) -> bool:
    try:
        metadata = admin.list_topics(timeout=_CALL_TIMEOUT_S).topics
    except KafkaException as error:
        failure: LogError = log_error(error.args[0], "list topics")
        if failure.retriable:
            return False
        raise failure from None
    return all(
        name in metadata
        and len(metadata[name].partitions) == topic.partitions
        and all(partition.leader >= 0 for partition in metadata[name].partitions.values())
        for name, topic in wanted.items()
    )
