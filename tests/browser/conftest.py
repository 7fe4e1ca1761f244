"""One Chromium for all browser tests."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

SYSTEM = Path("/usr/bin/chromium")
CHROMIUM = str(SYSTEM) if SYSTEM.exists() else shutil.which("chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(
            "no Chromium at /usr/bin/chromium or on PATH: install the package chromium to run this test"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=["--no-sandbox"])
        yield browser
        browser.close()
