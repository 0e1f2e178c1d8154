"""What others' clients send: each body is accepted, or refused with the name of what is not offered."""

from typing import Any

import pytest

from schemas.endings import EndingCode
from streams.dialects.neutral import RequestError
from streams.dialects.openai_chat import parse_chat_request
from tests.unit.streams.dialects.recorded import RECORDED, name_of


@pytest.mark.parametrize("recorded", RECORDED, ids=name_of)
def test_a_recorded_body_is_accepted_or_refused_by_name(recorded: dict[str, Any]) -> None:
    body = recorded["body"]
    if recorded["refused"] is None:
        chat = parse_chat_request(body)
        assert (chat.model, len(chat.messages)) == (body["model"], len(body["messages"]))
        assert [tool.name for tool in chat.tools] == [tool["function"]["name"] for tool in body.get("tools") or ()]
        return
    with pytest.raises(RequestError) as refused:
        parse_chat_request(body)
    assert (refused.value.code, refused.value.param) == (EndingCode.UNSUPPORTED_PARAMETER, recorded["refused"])
    assert refused.value.message.startswith(f"{recorded['refused']} is not supported")
