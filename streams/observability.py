"""Structured logs, and the small HTTP server by which every process shows `/readyz` and `/metrics`."""

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import REGISTRY as DEFAULT_REGISTRY
from prometheus_client import CollectorRegistry, make_wsgi_app

Ready = Callable[[], str | None]
"""None when ready, else why not."""


def configure_logging(process: str, level: str) -> None:
    """JSON lines on standard output, also for libraries that use `logging`. Never log a prompt or a secret."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, getattr(logging, level.upper())), force=True)


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """One line per probe would drown the log."""


class HealthServer:
    """Serves `/metrics` and `/readyz` on loopback from a thread of its own until `close`."""

    def __init__(self, port: int, ready: Ready, registry: CollectorRegistry = DEFAULT_REGISTRY) -> None:
        metrics = make_wsgi_app(registry)

        def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if environ["PATH_INFO"] != "/readyz":
                return metrics(environ, start_response)  # type: ignore[no-any-return]
            why = ready()
            start_response("200 OK" if why is None else "503 Service Unavailable", [("Content-Type", "text/plain")])
            return [(why or "ready").encode()]

        self._server: WSGIServer = make_server("127.0.0.1", port, app, handler_class=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
