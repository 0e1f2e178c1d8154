"""What is told of a batch's lines: of those that cannot or will not run, and of those that ended. On any thread."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog

from schemas.batch import BatchResult
from streams.gateway.batches.arrivals import Arrived
from streams.gateway.batches.core import Held
from streams.gateway.batches.line_log import LineLog, SignedLine
from streams.gateway.batches.lines import BrokenLine, Line, custom_id_of, read_line
from streams.gateway.batches.told import Told, not_run, told_of

UNREADABLE: Final = (ValueError, KeyError, TypeError)
"""What one result may raise as it is told, whatever it holds: of each of its fields that is not as it should be."""

_log = structlog.get_logger()


class Ends:
    """Of a batch as it stood."""

    def __init__(self, log: LineLog, held: Held) -> None:
        self._log = log
        self._held = held

    def not_run(self, line: int, custom_id: str, code: str, message: str = "", param: str | None = None) -> Told:
        return not_run(self._log.id_of(self._held.batch, line), custom_id, code, message, param)

    def signed(self, lines: Sequence[Line], now_ms: int) -> tuple[list[SignedLine], dict[int, Told]]:
        """Of lines that have not ended; and what is told of those that cannot run after all, as where this release
        takes less than the one that read them first.
        """
        batch = self._held.batch
        signed: list[SignedLine] = []
        told: dict[int, Told] = {}
        for line in self._open(lines):
            try:
                asked = read_line(line.raw, batch.endpoint)
            except BrokenLine as broken:
                told[line.number] = self.not_run(
                    line.number, broken.custom_id, broken.code, broken.message, broken.param
                )
            else:
                signed.append(self._log.signed(batch, line.number, asked, now_ms))
        return signed, told

    def _open(self, lines: Iterable[Line]) -> list[Line]:
        """Those that have not ended."""
        total, progress = self._held.batch.total, self._held.progress
        return [line for line in lines if line.number < total and not progress.has_ended(line.number)]

    def swept(self, lines: Iterable[Line], code: str) -> dict[int, Told]:
        """Of those that have not ended."""
        return {line.number: self.not_run(line.number, custom_id_of(line.raw), code) for line in self._open(lines)}

    def told(self, arrived: Mapping[int, Arrived]) -> dict[int, Told]:
        """A result that cannot be told is the error of its line alone: it would come again, and ends no batch."""
        return {line: self._told_of(line, each) for line, each in arrived.items()}

    def _told_of(self, line: int, arrived: Arrived) -> Told:
        try:
            result = BatchResult.model_validate_json(arrived.value)
            return told_of(result, arrived.custom_id)
        except UNREADABLE as error:
            batch_id = self._held.batch.batch_id
            _log.error("batch_result_unreadable", batch_id=batch_id, line=line, why=type(error).__name__)
            return self.not_run(line, arrived.custom_id, "result_unreadable", "The line's result cannot be read.")

    def without_room(self, told: Mapping[int, Told]) -> dict[int, Told]:
        """Where the output file has no room for the answers among them."""
        message = "The request was answered, and is billed, but the batch's output file has no room for its answer."
        return {
            line: self.not_run(line, each.custom_id, "output_too_large", message) if each.is_well else each
            for line, each in told.items()
        }
