"""Who reads and writes what: one row per process, one per tenant's producers, one for who traces. From it come the
ACLs of a cluster.

Every name in it is of the table of topics, or a consumer group; nothing else says who may do what.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from schemas.request import LANES
from streams.topics import Topic, Topics

INDEPENDENT = "sluice.independent."
"""How the name of a reader outside of any group begins: librdkafka looks it up, and commits nothing."""


class Operation(StrEnum):
    """Kafka's own names. To read or write implies to describe."""

    READ = "Read"
    WRITE = "Write"
    DESCRIBE = "Describe"


class Kind(StrEnum):
    TOPIC = "Topic"
    GROUP = "Group"
    TRANSACTIONAL_ID = "TransactionalId"


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """One thing that a role may do. `prefixed`: to everything whose name begins so."""

    kind: Kind
    name: str
    operation: Operation
    prefixed: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """What a process does to the log, by name. A name that ends in a dot means all that begin so.

    `groups` it is a member of; `watches` are the groups whose commits, and the topics whose ends, it asks for.
    `transactions`: how the ids of its transactions begin.
    """

    name: str
    groups: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    watches_groups: tuple[str, ...] = ()
    watches_topics: tuple[str, ...] = ()
    transactions: tuple[str, ...] = ()
    reads_alone: bool = True
    """Whether it also reads outside of any group."""

    def grants(self) -> list[Grant]:
        """Each once, sorted."""
        table: list[tuple[Kind, Operation, tuple[str, ...]]] = [
            (Kind.GROUP, Operation.READ, self.groups),
            (Kind.TOPIC, Operation.READ, self.reads),
            (Kind.TOPIC, Operation.WRITE, self.writes),
            (Kind.GROUP, Operation.DESCRIBE, self.watches_groups),
            (Kind.TOPIC, Operation.DESCRIBE, self.watches_topics),
            (Kind.TRANSACTIONAL_ID, Operation.WRITE, self.transactions),
            (Kind.TRANSACTIONAL_ID, Operation.DESCRIBE, self.transactions),
            (Kind.GROUP, Operation.DESCRIBE, (INDEPENDENT,) if self.reads_alone else ()),
        ]
        return sorted({Grant(kind, name, what, name.endswith(".")) for kind, what, names in table for name in names})


def process_roles(topics: Topics) -> list[Role]:
    """The processes of a region, each by the name of its module's table in `ARCHITECTURE.md`."""
    region, dead = topics.region, topics.dead_letters.name
    lanes = tuple(topics.lane(pool, lane).name for pool in topics.pools for lane in LANES)
    jobs = (*(topics.jobs(pool).name for pool in topics.pools), topics.aside.name)
    between = tuple(topic.name for topic in (topics.later, topics.validated, topics.reserved, topics.screened))
    pools = tuple(f"{region}.workers.{pool}" for pool in topics.pools)
    generated, control, usage = topics.generated.name, topics.control.name, topics.usage.name
    return [
        Role(
            "gateway",
            groups=(f"{region}.gateways",),
            reads=(
                topics.responses.name, topics.batch_results.name, topics.workers.name, topics.brownout.name,
                topics.prices.name,
            ),
            writes=(topics.requests.name, topics.intake_batch.name, control, usage, dead),
            # For the operations page: lag, and how much is written. It reads none of that.
            watches_groups=(
                f"{region}.admission", *pools, f"{region}.post-safety", f"{region}.settlement", f"{region}.billing",
                f"{region}.alerts",
            ),
            watches_topics=(topics.intake_batch.name, *jobs, *lanes, generated, topics.alerts.name),
        ),
        Role(
            "admission",
            groups=(f"{region}.admission",),
            reads=(
                topics.requests.name, topics.intake_batch.name, *jobs, *between, topics.moved.name,
                topics.workers.name, topics.brownout.name, control, generated, topics.prices.name, topics.billed.name,
                # After a loss of the quota store alone, as `generated`.
                topics.spent.name, usage,
            ),
            writes=(
                *lanes, *jobs, *between, generated, topics.verdicts.name, topics.policies.name, topics.brownout.name,
                dead,
            ),
            watches_groups=(f"{region}.settlement",),
        ),
        Role(
            "worker",
            groups=pools,
            reads=(*lanes, control, topics.workers.name, generated),
            writes=(generated, topics.workers.name, usage, dead, *lanes),
        ),
        Role(
            "post-safety",
            groups=(f"{region}.post-safety",),
            reads=(generated, control, topics.policies.name, topics.parked.name, topics.workers.name),
            writes=(
                topics.responses.name, usage, results_of_all(topics), topics.batch_results.name, control, generated,
                topics.verdicts.name, topics.parked.name, topics.moved.name, dead,
            ),
        ),
        Role(
            "settlement",
            groups=(f"{region}.settlement",),
            reads=(usage, topics.prices.name),
            writes=(topics.spent.name, topics.alerts.name, control, dead),
            watches_groups=pools,
            watches_topics=lanes,
        ),
        # Of `generated` it counts tokens again, and keeps no text.
        Role(
            "billing",
            groups=(f"{region}.billing", f"{region}.alerts"),
            reads=(usage, generated, topics.alerts.name, topics.prices.name),
            writes=(dead, topics.alerts.name, topics.prices.name, topics.billed.name),
            watches_groups=(f"{region}.post-safety",),
        ),
    ]  # fmt: skip


def producer_role(topics: Topics, tenant_id: str) -> Role:
    """What a tenant's producers may do: write jobs, and read their own results in groups of their own."""
    return Role(
        producer_role_name(tenant_id),
        groups=(producer_prefix(topics, tenant_id),),
        reads=(topics.results(tenant_id).name,),
        writes=(topics.intake_batch.name,),
        transactions=(producer_prefix(topics, tenant_id),),
        reads_alone=False,
    )


def tracer_role(topics: Topics) -> Role:
    """Who asks where the time of a response went. It reads prompts and answers on the way, and writes nothing."""
    lanes = (topics.lane(pool, lane) for pool in topics.pools for lane in LANES)
    read = (topics.requests, topics.generated, topics.responses, topics.control, topics.usage, *lanes)
    return Role("tracer", reads=tuple(topic.name for topic in read))


def producer_role_name(tenant_id: str) -> str:
    return f"producer-{tenant_id}"


def producer_prefix(topics: Topics, tenant_id: str) -> str:
    """How the groups and transactions of a tenant's producers begin. No tenant's id has a dot, so none is another's."""
    return f"{topics.region}.producers.{tenant_id}."


def results_of_all(topics: Topics) -> str:
    """How the topics of all tenants' results begin."""
    return topics.results("").name


def roles(topics: Topics, tenants: Iterable[str]) -> list[Role]:
    producers = (producer_role(topics, tenant) for tenant in sorted(tenants))
    return [*process_roles(topics), tracer_role(topics), *producers]


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """A grant to one principal, from any host."""

    principal: str
    grant: Grant

    def __str__(self) -> str:
        """As `kafka-acls.sh` takes it on a shell's command line."""
        grant = self.grant
        option = {Kind.TOPIC: "topic", Kind.GROUP: "group", Kind.TRANSACTIONAL_ID: "transactional-id"}[grant.kind]
        pattern = "prefixed" if grant.prefixed else "literal"
        return (
            f"--add --allow-principal {shlex.quote(self.principal)} --operation {grant.operation}"
            f" --{option} {grant.name} --resource-pattern-type {pattern}"
        )


def principal(region: str, role: str, named: Mapping[str, str]) -> str:
    """Who acts in a role: whom the settings name, else the user `sluice-<region>-<role>`."""
    return named.get(role, f"User:sluice-{region}-{role}")


def producers_prefix(region: str) -> str:
    """How the principals of all tenants' producers begin, also of those who are gone, unless the settings name them."""
    return principal(region, producer_role_name(""), {})


def acls(topics: Topics, tenants: Iterable[str], named: Mapping[str, str]) -> list[Acl]:
    """Everything that the processes of a region and its tenants' producers need, and nothing else. Sorted."""
    return sorted(_acls(topics, roles(topics, tenants), named))


def _acls(topics: Topics, table: Iterable[Role], named: Mapping[str, str]) -> Iterator[Acl]:
    for role in table:
        who = principal(topics.region, role.name, named)
        yield from (Acl(who, grant) for grant in role.grants())


def unowned(topics: Iterable[Topic], table: Iterable[Role]) -> list[str]:
    """Topics that nobody of the table reads, or that nobody writes."""
    table = list(table)

    def covered(name: str, names: Iterable[str]) -> bool:
        return any(name == each or (each.endswith(".") and name.startswith(each)) for each in names)

    return [
        topic.name
        for topic in topics
        if not any(covered(topic.name, role.reads) for role in table)
        or not any(covered(topic.name, role.writes) for role in table)
    ]
