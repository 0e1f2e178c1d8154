"""Which partitions of `generated` a worker writes. Pure."""

import hashlib
from collections.abc import Iterable


def home_partitions(worker_id: str, partitions: Iterable[int], count: int) -> list[int]:
    """The partitions of `generated` that a worker writes, by rendezvous hashing (Thaler and Ravishankar, 1998).

    Stable: another number of partitions moves as few workers as possible.
    """
    ranked = sorted(partitions, key=lambda partition: (_weight(worker_id, partition), partition), reverse=True)
    return sorted(ranked[:count])


def _weight(worker_id: str, partition: int) -> bytes:
    return hashlib.blake2b(f"{worker_id}/{partition}".encode(), digest_size=8).digest()
