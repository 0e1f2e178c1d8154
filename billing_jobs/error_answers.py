"""What billing's internal interface says where it does not answer: in OpenAI's shape, which gateways pass on."""

from starlette.responses import JSONResponse


def error_answer(
    status: int, message: str, code: str, param: str | None = None, retry_after_s: int | None = None
) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = None if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": code}}, status, headers)
