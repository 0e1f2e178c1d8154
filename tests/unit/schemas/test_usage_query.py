"""The words in which usage is asked for."""

import pytest

from schemas.usage_query import BUCKET_WIDTHS, GROUPS, InvalidQuery, parse_bucket_width, parse_group_by


def test_every_width_and_group_is_understood() -> None:
    assert [parse_bucket_width(width) for width in BUCKET_WIDTHS] == list(BUCKET_WIDTHS)
    assert parse_group_by(",".join(GROUPS)) == GROUPS
    assert parse_group_by(" ending , model,") == ("ending", "model")
    assert parse_group_by("") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [("model,tenant_id", "some of model"), ("model,model", "twice"), ("Model", "some of model"), ("model;", "some of")],
)
def test_what_is_no_list_of_groups_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidQuery, match=message) as raised:
        parse_group_by(text)
    assert raised.value.param == "group_by"


@pytest.mark.parametrize("text", ["", "1m", "1H", "1h,1d"])
def test_what_is_no_width_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuery, match="one of 1h, 1d") as raised:
        parse_bucket_width(text)
    assert raised.value.param == "bucket_width"
