"""Structured logs."""

import logging
import re
import sys

import structlog

from streams.seldom import Seldom

_FIGURES = re.compile(r"\d+")


def configure_logging(process: str, level: str) -> None:
    """JSON lines on standard output, also for libraries that use `logging`. Never log a prompt or a secret.

    What a library repeats, and a line with `repeats=True`, is logged seldom (`streams.seldom`), with `left_out`: how
    many like it were not logged since. So an outage fills no disk.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[_Repeats(), *shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(_LibrariesRepeats())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(allow=["left_out"]), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, getattr(logging, level.upper())), force=True)


class _Repeats:
    """Our own lines that say of themselves that they repeat, told apart by their event."""

    def __init__(self) -> None:
        self._seldom = Seldom()

    def __call__(
        self, _log: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if event.pop("repeats", False):
            left_out = self._seldom.left_out(str(event["event"]))
            if left_out is None:
                raise structlog.DropEvent
            if left_out:
                event["left_out"] = left_out
        return event


class _LibrariesRepeats(logging.Filter):
    """Lines of libraries, told apart by all but their figures: librdkafka and aiokafka write one for each attempt to
    connect. One with an exception is never left out: what failed stands there, not in the line's words.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seldom = Seldom()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            return True
        left_out = self._seldom.left_out(f"{record.name} {_FIGURES.sub('#', record.getMessage())}")
        if left_out:
            record.left_out = left_out
        return left_out is not None
