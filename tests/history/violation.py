"""What the parts of the judge say."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Violation(NamedTuple):
    """`kind`: `lost`, `doubled`, `zombie`, `differs`, `billed` or `held`. `about`: a response, a usage event, a job, a
    client.
    """

    kind: str
    about: str
    what: str


def exactly_one(found: Mapping[str, Any], about: str, what: str) -> Iterator[Violation]:
    if not found:
        yield Violation("lost", about, f"no {what}")
    if len(found) > 1:
        yield Violation("doubled", about, f"{len(found)} different {what}s")
