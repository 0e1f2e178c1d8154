"""Debian's chromium without a window."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

DRIVER = shutil.which("chromedriver")
WHY_NOT = "needs a browser: apt-get install chromium chromium-driver"


@contextmanager
def headless_browser(profile: Path) -> Iterator[Chrome]:
    """With a new profile in that folder."""
    assert DRIVER is not None
    options = ChromeOptions()
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # chromium refuses to be root with one
    # Nothing but the gateway may be reached: the page must bring all that it needs.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with Chrome(options=options, service=ChromeService(DRIVER)) as browser:
        yield browser
