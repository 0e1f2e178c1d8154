"""How every process begins, and what its exit code says."""

import sys
from collections.abc import Callable

from streams.observability import configure_logging
from streams.settings import Settings, SettingsError, load_settings

EXIT_SETTINGS = 2
"""No restart helps."""
EXIT_FAILED = 70
"""A restart may help; nothing of what was begun is lost by it."""


def exit_code(name: str | Callable[[Settings], str], run: Callable[[Settings], int]) -> int:
    """Reads the settings, logs under `name`, runs; returns what `run` does.

    `EXIT_SETTINGS`, with one line per wrong field on standard error, when the settings are refused, also by `run`.
    """
    try:
        settings = load_settings()
        configure_logging(name if isinstance(name, str) else name(settings), settings.log_level)
        return run(settings)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_SETTINGS
