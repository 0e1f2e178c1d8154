"""Post-safety with a group's coordinator that takes no commit: `python -m tests.processes.without_coordinator`."""

import sys
import threading
from typing import Any

from confluent_kafka import Consumer

from agents.post_safety.__main__ import main
from streams.log.kafka import consumer as kafka_consumer


class WithoutCoordinator(Consumer):
    """librdkafka's client: a commit that is waited for hangs, of any other nothing is heard."""

    def commit(self, *_arguments: Any, **options: Any) -> Any:
        if options.get("asynchronous"):
            return None
        return threading.Event().wait()


if __name__ == "__main__":
    kafka_consumer.Consumer = WithoutCoordinator  # type: ignore[attr-defined]
    sys.exit(main())
