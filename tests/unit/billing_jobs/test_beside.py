"""Work beside the sink is begun again when it fails, and ends with the process."""

import threading

from billing_jobs.beside import beside


def test_what_fails_is_begun_again_and_told_when_to_stop() -> None:
    begun: list[int] = []
    second = threading.Event()

    def run(stop: threading.Event) -> None:
        begun.append(len(begun))
        if len(begun) == 1:
            raise RuntimeError("by script")
        second.set()
        stop.wait()

    with beside("test", run, begin_again_s=0.01):
        assert second.wait(30)
    assert begun == [0, 1]
    assert "test" not in {thread.name for thread in threading.enumerate()}
