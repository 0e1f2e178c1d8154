"""What may be asked about usage: the words of `GET /v1/usage` and of the billing process behind it."""

from typing import Literal, get_args

BucketWidth = Literal["1h", "1d"]
GroupBy = Literal["model", "project_id", "key_id", "endpoint", "lane", "pool", "region", "ending"]
BUCKET_WIDTHS: tuple[BucketWidth, ...] = get_args(BucketWidth)
GROUPS: tuple[GroupBy, ...] = get_args(GroupBy)


def parse_bucket_width(text: str) -> BucketWidth:
    """Raises ValueError, in words for whoever asked."""
    for width in BUCKET_WIDTHS:
        if text == width:
            return width
    raise ValueError(f"bucket_width must be one of {', '.join(BUCKET_WIDTHS)}")


def parse_group_by(text: str) -> tuple[GroupBy, ...]:
    """A comma list, in its order. Raises ValueError, in words for whoever asked."""
    asked = [name for part in text.split(",") if (name := part.strip())]
    known = tuple(group for name in asked for group in GROUPS if name == group)
    if len(known) < len(asked):
        raise ValueError(f"group_by must be some of {', '.join(GROUPS)}")
    if len(set(known)) < len(known):
        raise ValueError("group_by names a field twice")
    return known
