"""What may be asked about usage: the words of `GET /v1/usage` and of the billing process behind it."""

from typing import Literal, get_args

BucketWidth = Literal["1h", "1d"]
GroupBy = Literal["model", "project_id", "key_id", "endpoint", "lane", "pool", "region", "ending"]
BUCKET_WIDTHS: tuple[BucketWidth, ...] = get_args(BucketWidth)
GROUPS: tuple[GroupBy, ...] = get_args(GroupBy)
MAX_TIME_S = 2**33
"""Unix time. Before it no bucket begins."""


class InvalidQuery(ValueError):
    """In words for whoever asked; `param` names the field at fault."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def parse_bucket_width(text: str) -> BucketWidth:
    """Raises InvalidQuery."""
    for width in BUCKET_WIDTHS:
        if text == width:
            return width
    raise InvalidQuery("bucket_width", f"bucket_width must be one of {', '.join(BUCKET_WIDTHS)}")


def parse_group_by(text: str) -> tuple[GroupBy, ...]:
    """A comma list, in its order. Raises InvalidQuery."""
    asked = [name for part in text.split(",") if (name := part.strip())]
    known = tuple(group for name in asked for group in GROUPS if name == group)
    if len(known) < len(asked):
        raise InvalidQuery("group_by", f"group_by must be some of {', '.join(GROUPS)}")
    if len(set(known)) < len(known):
        raise InvalidQuery("group_by", "group_by names a field twice")
    return known
