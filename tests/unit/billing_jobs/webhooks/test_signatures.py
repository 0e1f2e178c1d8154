"""A receiver can tell our messages from others' with any library of Standard Webhooks."""

import base64
import hashlib
import hmac
import json

from billing_jobs.webhooks.signatures import OPERATOR, body_of, receiver_secrets, shown_secret, signed_headers
from schemas.alert import Alert
from streams.keyring import Keyring

ALERT = Alert.raised(
    "budget_threshold", "month/tenant", "warning", "80 % are used", since_ms=5, told_at_ms=7, tenant_id="acme",
    figures={"percent": 80},
)  # fmt: skip


def test_the_example_of_the_standard_is_signed_as_it_says() -> None:
    """https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md"""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330")


def test_every_receiver_has_a_secret_of_its_own_and_a_rotation_loses_no_message() -> None:
    before, after = Keyring((b"old" * 20,)), Keyring((b"new" * 20, b"old" * 20))
    [old] = receiver_secrets(before, "acme")
    assert old not in receiver_secrets(before, "globex") + receiver_secrets(before, OPERATOR)
    headers = signed_headers(receiver_secrets(after, "acme"), "alert_1.raised", 9, b"{}")
    expected = base64.b64encode(hmac.digest(old, b"alert_1.raised.9.{}", hashlib.sha256)).decode()
    assert f"v1,{expected}" in headers["webhook-signature"].split(" "), "who has the old secret still believes it"
    assert base64.b64decode(shown_secret(old).removeprefix("whsec_")) == old


def test_the_body_says_what_the_alert_says_and_a_copy_of_it_has_the_same_bytes() -> None:
    body = json.loads(body_of(ALERT))
    assert body["type"] == "budget_threshold.raised"
    assert body["data"]["figures"] == {"percent": 80}
    assert body["data"]["alert_id"] == ALERT.alert_id
    assert body_of(Alert.model_validate_json(ALERT.encode())) == body_of(ALERT)
    assert ALERT.resolved(9).event_id != ALERT.event_id
