"""One statement as it is handed to a reader, and what comes back."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Ask:
    """`parameters` are the values of `{name:Type}`, escaped as in TabSeparated; `format` holds where the statement
    names none. `protocol` is the version of the protocol that who asks speaks, 0: it names none.
    """

    tenant: str
    statement: str
    format: str = "TabSeparated"
    parameters: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    protocol: int = 0

    def told(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """`format` is that of `body`."""

    body: bytes
    format: str
    read_rows: int
    read_bytes: int
    elapsed_ns: int
