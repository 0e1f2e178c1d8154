"""A key on the whole stack, in the database that comes with it: many ask at once, one is answered and billed."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from deploy.local.runner import Stack
from tests.e2e.records import usage_rows
from tests.e2e.stacks import TIMEOUT_S, body, http_client
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

KEYED = {"idempotency-key": "order 66"}


def test_many_that_ask_with_one_key_are_answered_and_billed_once(stack: Stack) -> None:
    def ask(streams: bool) -> httpx.Response:
        with http_client(stack) as client:
            asked = body("Once.", max_tokens=20, stream=streams)
            return client.post("/v1/chat/completions", json=asked, headers=KEYED)

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(ask, [False, True] * 3))
    assert {answer.status_code for answer in answers} == {200}
    [response_id] = {answer.headers["x-request-id"] for answer in answers}
    assert len({answer.text for answer in answers[::2]}) == 1
    assert ask(False).json() == answers[0].json(), "also afterwards"
    with http_client(stack) as client:
        other = client.post("/v1/chat/completions", json=body("Twice.", max_tokens=20), headers=KEYED)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    condition = f"response_id = '{response_id}'"
    until(lambda: usage_rows(stack, condition), "it is billed", TIMEOUT_S, every_s=0.2)
    assert len(usage_rows(stack, condition)) == 1
