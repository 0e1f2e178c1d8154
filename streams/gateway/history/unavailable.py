"""When replay cannot be had."""


class HistoryUnavailable(Exception):
    """The entries were not taken or given. `is_transient`: the same may succeed a little later."""

    def __init__(self, message: str, *, is_transient: bool = True) -> None:
        super().__init__(message)
        self.is_transient = is_transient
