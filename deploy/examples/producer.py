"""A batch producer: signs one job, puts it on the intake topic and handles results until that of the job is there.

    .venv/bin/python deploy/examples/producer.py "What is the capital of France?"

Everything that it needs to know (brokers, topics, tenant, signing key) comes from `sluice status --json`; a producer
elsewhere gets the same from its operator.

Results are read in one consumer group, whose name stays the same for as long as there is the application: Kafka keeps
its position, which is committed behind what was handled. Started again, it first handles what came while it was away.
So one process at a time runs for an application: of two, each is given half of the results.
"""

import argparse
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from deploy.batch.connection import Kafka, properties
from schemas.batch import BatchJob, BatchResult
from streams.signing import sign_job

APPLICATION = "example"
EXPIRES_AFTER_MS = 60_000
SEEN = 10_000
"""Ids of results that are remembered: lines are written at least once."""
SESSION_TIMEOUT_MS = 6_000
"""After that long without a word from a process that died, Kafka gives its partitions to the next one."""


def produce(
    status: dict[str, Any], kafka: Kafka, prompt: str, custom_id: str, max_tokens: int,
    expires_after_ms: int = EXPIRES_AFTER_MS,
) -> None:  # fmt: skip
    """Writes the signed job; returns once Kafka acknowledged it. Raises RuntimeError when it does not."""
    producer_key = status["producer"]
    private_key = load_pem_private_key(Path(producer_key["key_file"]).read_bytes(), password=None)
    if not isinstance(private_key, Ed25519PrivateKey):
        raise TypeError(f"{producer_key['key_file']} holds no Ed25519 key")
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "default", "messages": messages, "max_tokens": max_tokens, "temperature": 0}
    value = BatchJob(body=body).model_dump_json().encode()
    topic = producer_key["topics"]["intake"]
    headers = sign_job(
        private_key,
        topic=topic,
        tenant_id=status["tenant"],
        key_id=producer_key["key_id"],
        custom_id=custom_id,
        expires_ms=time.time_ns() // 1_000_000 + expires_after_ms,
        value=value,
    )
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({**kafka, "enable.idempotence": True})
    producer.produce(topic, value=value, key=custom_id, headers=list(headers), on_delivery=delivered)
    if producer.flush(10) or failures:
        raise RuntimeError(f"the job was not acknowledged: {failures[0] if failures else 'timeout'}")


def ignore(_result: BatchResult) -> None:
    """For who waits for one result alone."""


def await_result(
    status: dict[str, Any],
    kafka: Kafka,
    custom_id: str,
    timeout_s: float,
    *,
    application: str = APPLICATION,
    handle_other: Callable[[BatchResult], None] = ignore,
) -> BatchResult:
    """The job's line on the tenant's results topic. Raises TimeoutError, RuntimeError.

    `handle_other` is given each other result of the tenant that nobody of the application has handled, once in a run;
    after a crash the last ones may come again, so keep the `id` beside what you make of it.
    """
    consumer = Consumer(
        {
            **kafka,
            "group.id": f"{status['producer']['group_prefix']}{application}",
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 1_000,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
        }
    )
    seen: dict[str, None] = {}
    try:
        consumer.subscribe([status["producer"]["topics"]["results"]])
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            message = consumer.poll(0.5)
            if message is None:
                continue
            failure = message.error()
            if failure is not None:
                raise RuntimeError(str(failure))
            value = message.value()
            result = None if value is None else BatchResult.model_validate_json(value)
            if result is not None and result.id not in seen:
                if result.custom_id == custom_id:
                    consumer.store_offsets(message)
                    return result
                handle_other(result)
                seen[result.id] = None
                if len(seen) > SEEN:
                    del seen[next(iter(seen))]
            # Committed within a second, and by `close`. Who dies before that handles it again; none is lost.
            consumer.store_offsets(message)
        raise TimeoutError(f"no result for {custom_id} after {timeout_s:g} s")
    finally:
        consumer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Sends one batch job through Kafka and prints its result.")
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=60, help="seconds to wait for the result")
    parser.add_argument("--application", default=APPLICATION, help="whose results these are: the name of the group")
    parser.add_argument("--kafka-config", type=Path, help="a client.properties of librdkafka: TLS, name and password")
    parser.add_argument("--data", help="the stack's folder, if it is not the usual one")
    options = parser.parse_args()
    sluice = Path(sys.executable).with_name("sluice")
    command = [sluice, "status", "--json", *(["--data", options.data] if options.data else [])]
    shown = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False)  # noqa: S603
    if shown.returncode != 0:
        return shown.returncode
    status = json.loads(shown.stdout)
    custom_id = f"{options.application}-{uuid.uuid4().hex[:12]}"
    kafka = {"bootstrap.servers": status["kafka"], **properties(options.kafka_config)}
    produce(status, kafka, options.prompt, custom_id, options.max_tokens)
    print(f"job {custom_id} is on {status['producer']['topics']['intake']}", file=sys.stderr)

    def handle_other(other: BatchResult) -> None:
        if other.custom_id.startswith(f"{options.application}-"):
            print(f"{other.custom_id} of an earlier run: {'answered' if other.response else 'failed'}", file=sys.stderr)

    result = await_result(
        status, kafka, custom_id, options.timeout, application=options.application, handle_other=handle_other
    )
    print(result.model_dump_json(indent=1, exclude_none=True))
    return 0 if result.error is None else 1


if __name__ == "__main__":
    sys.exit(main())
