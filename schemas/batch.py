"""Batch producers: the job they write to `intake.batch` and the line they read from their results topic."""

from operator import not_
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from schemas.base import Identifier, Milliseconds, Record, Scope, ScopedRecord, is_absent
from schemas.request import ReplyTo

SIGNATURE_HEADER = "sluice-signature"
KEY_ID_HEADER = "sluice-key-id"
TENANT_HEADER = "sluice-tenant"
CUSTOM_ID_HEADER = "sluice-custom-id"
EXPIRES_HEADER = "sluice-expires-ms"
CHAT_URL = "/v1/chat/completions"
COMPLETIONS_URL = "/v1/completions"
EMBEDDINGS_URL = "/v1/embeddings"
RESPONSES_URL = "/v1/responses"
ENDPOINTS = (CHAT_URL, COMPLETIONS_URL, EMBEDDINGS_URL, RESPONSES_URL)
"""What a job, or a line of a batch, may ask."""


class BatchJob(Record):
    """The value of a record on `intake.batch`. Record headers carry tenant, key id, custom id, expiry and signature.

    `body` is the body of a `POST` to `url`; the same checks apply, and the same names in errors. The other fields are
    those of a line of OpenAI's batch files; what is not among them is refused.
    """

    type: Literal["job"] = "job"
    custom_id: Identifier | None = Field(default=None, description="If given, that of the record's header.")
    method: str = Field(default="POST", json_schema_extra={"const": "POST"})
    url: str = Field(default=CHAT_URL, json_schema_extra={"enum": [*ENDPOINTS]})
    body: dict[str, Any]


class JobCancel(Record):
    """The other value of a record on `intake.batch`: it ends the job that the record's headers name, wherever that is.

    Signed as a job is, with the same headers. What has ended stays as it ended. A job that comes after its cancel ends
    as well, as long as admission remembers that.
    """

    model_config = ConfigDict(json_schema_extra={"required": ["type"]})

    type: Literal["job_cancel"] = "job_cancel"
    custom_id: Identifier | None = Field(default=None, description="If given, that of the record's header.")


class LineCancel(ScopedRecord):
    """On `intake.batch`: it does to the line of a batch what `JobCancel` does to a job. Written by gateways alone,
    signed as their requests are. Admission of the release before makes a dead letter of it.
    """

    type: Literal["line_cancel"] = "line_cancel"
    endpoint: str = Field(default="chat.completions", max_length=64, description="As in the line's request.")
    reply_to: ReplyTo
    requested_at_ms: Milliseconds
    deadline_ms: Milliseconds = Field(description="The line's own.")


INTAKE: TypeAdapter[JobCancel | BatchJob] = TypeAdapter(JobCancel | BatchJob)


class BatchResponse(BaseModel):
    """As in OpenAI's batch output lines."""

    model_config = ConfigDict(extra="ignore")

    status_code: int
    request_id: str
    body: dict[str, Any]


class BatchError(BaseModel):
    """As in OpenAI's batch error lines, with the retry advice of the endings catalogue."""

    model_config = ConfigDict(extra="ignore")

    code: str
    message: str
    param: str | None = None
    retry_after_ms: int | None = None
    reason: str | None = Field(
        default=None,
        exclude_if=is_absent,
        description="The code behind `rejected-`, `evicted-` or `stopped-`: only with the last had a worker begun it.",
    )


RESULT_TOO_LARGE = "result_too_large"
"""The code of a line whose answer no record can hold. The response has ended, and is billed."""


class BatchResult(Record):
    """On `results.<tenant>`, keyed by `custom_id`: exactly one of `response` and `error` is set.

    Written at least once; equal `id` means equal content.
    """

    type: Literal["result"] = "result"
    scope: Scope
    id: Identifier = Field(description="The response id.")
    custom_id: Identifier
    response: BatchResponse | None = None
    error: BatchError | None = None
    left_out: list[Literal["logprobs"]] = Field(
        default_factory=list,
        exclude_if=not_,
        description="What the answer has, and this line had no room for: it is null in every choice.",
    )
    vectors_as: Literal["float"] | None = Field(
        default=None,
        exclude_if=is_absent,
        description="How what asked `/v1/embeddings` is to be told its vectors, which are base64 here, as numbers need"
        " more room than a record has; null: as they stand here.",
    )
