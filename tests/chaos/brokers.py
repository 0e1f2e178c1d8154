"""The brokers of a stack that has several: who leads and who coordinates, and how that moves without a death."""

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from deploy.local.runner import Stack
from tests.chaos.schedule import Fault, Kind

POSITIONS = "__consumer_offsets"
"""Who leads a partition of it coordinates the groups whose positions stand there."""
ELECT_LEADERS, PREFERRED = 43, 0
"""Of Kafka's protocol: the request, and the election's kind."""
CALL_TIMEOUT_S = 30.0
IN_SYNC_TIMEOUT_S = 120.0
LOOK_S = 0.2


@dataclass(frozen=True)
class Standing:
    """`leads`: how many partitions, by broker. `coordinates`: the broker of each group. `behind`: copies that are not
    in sync with their leader's.
    """

    leads: Mapping[int, int]
    coordinates: Mapping[str, int]
    behind: int

    def most_needed(self) -> int:
        """Who coordinates most groups; of those that are alike, who leads most."""
        groups = Counter(self.coordinates.values())
        return max(sorted(self.leads), key=lambda broker: (groups[broker], self.leads[broker]))


def _admin(stack: Stack) -> AdminClient:
    return AdminClient({"bootstrap.servers": stack.plan.settings.kafka.bootstrap, "log_level": 0})


def standing(stack: Stack) -> Standing:
    admin = _admin(stack)
    topics = admin.list_topics(timeout=CALL_TIMEOUT_S).topics.values()
    partitions = [partition for topic in topics for partition in topic.partitions.values()]
    listed = admin.list_consumer_groups(request_timeout=CALL_TIMEOUT_S).result()
    ours = [group.group_id for group in listed.valid if group.group_id.startswith(f"{stack.plan.settings.region}.")]
    told = admin.describe_consumer_groups(ours, request_timeout=CALL_TIMEOUT_S)
    return Standing(
        Counter(partition.leader for partition in partitions),
        {group: asked.result().coordinator.id for group, asked in told.items()},
        sum(len(partition.replicas) - len(partition.isrs) for partition in partitions),
    )


def until_in_sync(stack: Stack) -> None:
    """Until every copy of everything is as new as its leader's: then any broker may die. Raises TimeoutError."""
    deadline_s = time.monotonic() + IN_SYNC_TIMEOUT_S
    while (behind := standing(stack).behind) > 0:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{behind} copies are not in sync after {IN_SYNC_TIMEOUT_S:g} s")
        time.sleep(LOOK_S)


def move_coordinators(stack: Stack) -> list[str]:
    """Hands each group back to the broker that is to coordinate it, where that was away. Returns whose has moved."""
    before = standing(stack).coordinates
    partitions = _admin(stack).list_topics(POSITIONS, timeout=CALL_TIMEOUT_S).topics[POSITIONS].partitions
    node = stack.plan.kafka[0]
    _elect_preferred(node.host, node.port, POSITIONS, list(partitions))
    after = standing(stack).coordinates
    return [group for group, broker in after.items() if before.get(group) != broker]


def _elect_preferred(host: str, port: int, topic: str, partitions: Sequence[int]) -> None:
    """Kafka's ElectLeaders (version 1), which the client at hand cannot ask. Raises RuntimeError where it is refused.

    A partition that is led by whom it should be is an error of its own in the answer, and none here.
    """
    name = topic.encode()
    body = struct.pack(
        f">hhih5s bih{len(name)}si{len(partitions)}ii",
        *(ELECT_LEADERS, 1, 0, 5, b"chaos"),
        *(PREFERRED, 1, len(name), name, len(partitions), *partitions, round(CALL_TIMEOUT_S * 1_000)),
    )
    with (
        socket.create_connection((host, port), timeout=CALL_TIMEOUT_S) as connection,
        connection.makefile("rb") as told,
    ):
        connection.sendall(struct.pack(">i", len(body)) + body)
        [length] = struct.unpack(">i", told.read(4))
        _, _, error = struct.unpack_from(">iih", told.read(length))
    if error:
        raise RuntimeError(f"Kafka elects no leaders: error {error}")


def deal(stack: Stack, rounds: int, after_s: float = 3.0) -> Iterator[Fault]:
    """Kills who is needed most; when it is back, hands its groups back to it; then kills who is needed most by then,
    unless it is the same: so no round strikes a broker twice.
    """
    for _ in range(rounds):
        spared: set[int] = set()
        for _ in range(2):
            until_in_sync(stack)
            stood = standing(stack)
            left = {broker: leads for broker, leads in stood.leads.items() if broker not in spared}
            victim = Standing(left, stood.coordinates, 0).most_needed()
            spared.add(victim)
            yield Fault(Kind.KILL, (stack.plan.kafka[victim - 1].directory.name,), after_s=after_s)
            until_in_sync(stack)
            yield Fault(Kind.MOVE, ("coordinators",), after_s=after_s)
