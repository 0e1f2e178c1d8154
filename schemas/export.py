"""JSON Schema (2020-12) of what outsiders write and read. `python -m schemas.export DIR` writes one file per record.

And two of the WebSocket's messages: of what clients send, and of what they are sent.
"""

import json
import sys
from pathlib import Path
from typing import Any

from schemas.admission import Move
from schemas.alert import Alert
from schemas.base import Record
from schemas.batch import BatchJob, BatchResult, JobCancel, LineCancel
from schemas.billed import Billed
from schemas.brownout import PoolLevel
from schemas.control import AttemptVoid, Cancel, Halt
from schemas.dead_letter import DeadLetter
from schemas.generated import Ending, Fence, Frame, Opened
from schemas.parked import Parked
from schemas.policy import OutputPolicy
from schemas.price import PriceTold
from schemas.request import AdmittedRequest, Request
from schemas.responses import Release, Started, Terminal
from schemas.spent import SpentTotal
from schemas.usage import ComputeRecord, DeliveredCount, Presence, UsageEvent
from schemas.verdict import Verdict
from schemas.websocket import CLIENT_MESSAGE, SERVER_MESSAGE
from schemas.worker import WorkerState

RECORDS: tuple[type[Record], ...] = (
    AdmittedRequest, Alert, AttemptVoid, BatchJob, BatchResult, Billed, Cancel, ComputeRecord, DeadLetter,
    DeliveredCount, Ending, Fence, Frame, Halt, JobCancel, LineCancel, Move, Opened, OutputPolicy, Parked, PoolLevel,
    Presence, PriceTold, Release, Request, SpentTotal, Started, Terminal, UsageEvent, Verdict, WorkerState,
)  # fmt: skip
"""Every record that travels on a topic."""


def json_schemas() -> dict[str, dict[str, Any]]:
    """Schema by record type, such as `job`, and by direction on a socket; the same text for the same code."""
    return {
        **{record.model_fields["type"].default: record.model_json_schema() for record in RECORDS},
        "websocket_client": CLIENT_MESSAGE.json_schema(),
        "websocket_server": _told_apart(SERVER_MESSAGE.json_schema()),
    }


def _told_apart(union: dict[str, Any]) -> dict[str, Any]:
    """Each message has its `type`, whatever else it leaves to a default: types made from it need to know."""
    for part in union["$defs"].values():
        if "const" in part["properties"].get("type", {}):
            part["required"] = ["type", *part.get("required", ())]
    return union


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in json_schemas().items():
        (folder / f"{name}.json").write_text(json.dumps(schema, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
