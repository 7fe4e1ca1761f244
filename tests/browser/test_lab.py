"""JupyterLab as a person uses it: open notebook 03, run all cells, step through the trees, ask the kernel."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, expect

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "03_run_ddtree.ipynb"
TOKEN = "local-test"  # of a server that listens on this machine's loopback for the length of the test
MINUTE = 60_000

pytestmark = pytest.mark.browser


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """Address of a JupyterLab over a folder that holds notebook 03 with quick parameters."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    parameters = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    for name, value in {"pair": '"tiny-llama"', "max_new_tokens": "24"}.items():
        parameters.source, changed = re.subn(
            rf"^({name}: \w+ = ).*?(  #.*)$", rf"\g<1>{value}\2", parameters.source, flags=re.MULTILINE
        )
        assert changed == 1
    notebook.cells.append(nbformat.v4.new_code_cell("print('the kernel sees round', view.index)"))
    nbformat.write(notebook, tmp_path / "run.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [f"--port={port}", "--ip=127.0.0.1", f"--IdentityProvider.token={TOKEN}", "--no-browser"]
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        *options,
        "--allow-root",
        f"--ServerApp.root_dir={tmp_path}",
    ]
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_DATA_DIR": str(tmp_path),
    }
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/api/status?token={TOKEN}")
        yield f"{address}/lab/tree/run.ipynb?reset&token={TOKEN}"
    finally:
        server.terminate()
        server.wait(20)


def wait_for(url: str) -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(f"JupyterLab did not answer within a minute at {url}")


def test_run_all_and_step_through_the_trees(lab: str, browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(lab)
    page.wait_for_selector(".jp-Notebook", timeout=2 * MINUTE)
    # Run All before the kernel is there would ask which kernel to take.
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=MINUTE)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    expect(page.get_by_text("Rounds needed: Autoregressive")).to_be_visible(timeout=3 * MINUTE)

    view = page.locator(".ddtree-view").first
    view.scroll_into_view_if_needed()
    expect(view.locator("svg")).to_be_visible(timeout=MINUTE)
    place = view.locator(".ddtree-place")
    first = place.inner_text()
    view.locator(".ddtree-next").click()
    expect(place).not_to_have_text(first)
    view.locator(".ddtree-slider").fill("2")
    page.screenshot(path=tmp_path / "lab.png")

    last = page.locator(".jp-Notebook .jp-CodeCell").last
    last.scroll_into_view_if_needed()
    last.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    expect(last.get_by_text("the kernel sees round 2")).to_be_visible(timeout=MINUTE)
    page.close()
