"""How an engine of vLLM ends with all that it has: processes, sockets and their threads."""

import threading
import time
from traceback import walk_tb
from typing import Any, Final

import psutil
import structlog

PATIENCE_S: Final = 10.0
"""How long vLLM's sockets may take to close, and then the threads that serve them to end. Both take milliseconds."""
_LOOK_AGAIN_S: Final = 0.01

_log = structlog.get_logger()


def shut_down(llm: Any) -> None:
    """Ends an `AsyncLLM`. For a thread: it takes seconds, and the event loop has to run meanwhile."""
    llm.shutdown()
    # Its finalizer shuts down once more, and fails when the interpreter is being taken down by then.
    llm.shutdown = lambda: None
    _end_context(llm.engine_core.resources)


def end_what_failed(failure: BaseException) -> None:
    """Of an `AsyncLLM` that could not be made. vLLM closes its sockets then; the frames of the failure alone still know
    their context.
    """
    for frame, _ in walk_tb(failure.__traceback__):
        resources = getattr(frame.f_locals.get("self"), "resources", None)
        if hasattr(resources, "ctx"):
            _end_context(resources)


def _end_context(resources: Any) -> None:
    """vLLM leaves the context of its sockets, and with it two threads, to the garbage collector. `resources` are vLLM's
    `BackgroundResources`, which have been shut down: what is left to happen is a callback on the loop, which closes
    the sockets.
    """
    sockets = [each for each in (resources.input_socket, resources.output_socket) if each is not None]
    until_s = time.monotonic() + PATIENCE_S
    while not all(each.closed for each in sockets):
        if time.monotonic() >= until_s:
            _log.warning("vllm_sockets_stay_open")
            return
        time.sleep(_LOOK_AGAIN_S)
    # It waits for any socket that is open, and nothing can interrupt that.
    ending = threading.Thread(target=resources.ctx.destroy, kwargs={"linger": 0}, name="vllm-sockets", daemon=True)
    ending.start()
    ending.join(PATIENCE_S)
    if ending.is_alive():
        _log.warning("vllm_sockets_stay_open")


def kill_with_children(process_id: int) -> None:
    try:
        process = psutil.Process(process_id)
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
