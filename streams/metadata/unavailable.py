"""What every store in the database raises while that is away."""


class MetadataUnavailable(Exception):
    """The database did not do it, or not in time; it may have done it all the same. The same may succeed later."""


class TooManyWait(MetadataUnavailable):
    """It was not asked: too many wait for it already. It may be well, and who asks next may have room."""


class NotAsMigrated(MetadataUnavailable):
    """It answers, and lacks a table or a right. It may come back, and until then other work goes on."""


class GivenUp(MetadataUnavailable):
    """It answers, and has ended this one transaction: that took too long, or was in somebody's way."""


class NotAsked(MetadataUnavailable):
    """It was not asked: it has answered nobody lately, and somebody else tries."""
