"""The words in which usage is asked for."""

import pytest

from schemas.usage_query import BUCKET_WIDTHS, GROUPS, parse_bucket_width, parse_group_by


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
    with pytest.raises(ValueError, match=message):
        parse_group_by(text)


@pytest.mark.parametrize("text", ["", "1m", "1H", "1h,1d"])
def test_what_is_no_width_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="one of 1h, 1d"):
        parse_bucket_width(text)
