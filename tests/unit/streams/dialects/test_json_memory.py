"""What is made of a body takes many times its bytes: never more than was counted."""

import json
import tracemalloc

import pytest

from streams.dialects.json_body import parse_json_object, parsed_bytes

MANY = 20_000


def rows(item: str) -> str:
    return '{"rows":[' + ",".join([item] * MANY) + "]}"


@pytest.mark.parametrize(
    "text",
    [
        rows("1"),
        rows("123456789012"),
        rows("0.5"),
        rows('"ab"'),
        rows('"\u0101"'),
        rows('"\U0001f600"'),
        rows('"\\u0101"'),
        rows('"\\ud83d\\ude00"'),
        rows("{}"),
        rows("[]"),
        rows("[[],[[]]]"),
        rows('{"a":1}'),
        rows('{"a":"\u0101","b":{}}'),
        rows('{"a":{"b":{"c":{}}}}'),
        '{"rows":[' + ",".join(f'{{"name{number}":0}}' for number in range(MANY)) + "]}",
        json.dumps({"rows": [{f"{row}.{name}": 0 for name in range(6)} for row in range(MANY // 6)]}),
        rows('["\u0101"]'),
        json.dumps({f"name{number}": number for number in range(2_000)}),
        json.dumps({"text": "a" * 1_000_000}),
        json.dumps({"text": "a" * 1_000_000 + "\U0001f600"}),
        json.dumps({"text": "a" * 1_000_000 + "\U0001f600"}, ensure_ascii=False),
        json.dumps({"text": "\u4e2d\u6587" * 300_000}, ensure_ascii=False),
        json.dumps({"text": "\u4e2d\u6587" * 300_000}),
        json.dumps({"text": "\U0001f600" * 300_000}),
        json.dumps({"text": r"\u" * 300_000 + "\U0001f600"}),
        json.dumps({"text": "\\\u4e2d" * 300_000}),
        json.dumps({"text": "{[,:" * 200_000}),
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
@pytest.mark.parametrize("is_raw", [False, True], ids=["message", "body"])
def test_what_is_made_of_a_body_takes_no_more_than_was_counted(text: str, is_raw: bool) -> None:
    given = text.encode() if is_raw else text
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        made = parse_json_object(given)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made
    assert 0 < after - before <= parsed_bytes(given)
    assert parsed_bytes(given) <= 50 * len(text)


def test_a_text_costs_the_same_however_its_characters_are_written() -> None:
    body = {"text": "\u4e2d\u6587" * 300_000}
    assert parsed_bytes(json.dumps(body)) == parsed_bytes(json.dumps(body, ensure_ascii=False))
