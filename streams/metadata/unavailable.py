"""What every store in the database raises while that is away."""


class MetadataUnavailable(Exception):
    """The database did not do it, or not in time; it may have done it all the same. The same may succeed later."""
