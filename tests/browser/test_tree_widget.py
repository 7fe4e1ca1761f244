"""The tree widget in a real browser without a kernel: its JavaScript over the saved state must do all."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page

from ddtree_core.decoding.records import Round
from ddtree_core.reporting.tree.view import TreeView
from ddtree_core.trees.draft_tree import DraftTree

pytestmark = pytest.mark.browser

# What anywidget gives a view, over a plain object instead of a comm.
PAGE = """<!doctype html><meta charset="utf-8"><title>tree</title><style>%(css)s</style><div id="view"></div>
<script type="module">
const state = %(state)s, listeners = {};
window.saved = 0;
window.model = {
  get: (name) => state[name],
  set(name, value) {
    if (state[name] === value) return;
    state[name] = value;
    for (const listener of listeners[`change:${name}`] ?? []) listener();
  },
  on: (event, listener) => (listeners[event] ??= []).push(listener),
  save_changes: () => { window.saved += 1; },
};
const source = new Blob([%(esm)s], { type: "text/javascript" });
const widget = (await import(URL.createObjectURL(source))).default;
window.dispose = widget.render({ model, el: document.getElementById("view") });
window.ready = true;
</script>"""


def script_literal(value: object) -> str:
    return json.dumps(value).replace("</", "<\\/")


def make_rounds() -> list[Round]:
    """Four rounds over trees of 1, 40, 80 and 120 draft nodes, each accepting one node and a bonus token."""
    rounds = []
    for index, size in enumerate([1, 40, 80, 120], start=1):
        parents = [-1, 0] + [(node - 1) // 3 for node in range(2, size + 1)]
        depths = [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
        ids = torch.arange(size + 1)
        tree = DraftTree(ids, torch.tensor(parents), torch.tensor(depths), -0.5 * torch.tensor(depths))
        rounds.append(
            Round(index, tree, [1000 + index] * (size + 1), [0, 1], [1, 1000 + index], {"verify": 0.05})
        )
    return rounds


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that shows the widget of `make_rounds`; it must stay silent and ask nothing of any host."""
    view = TreeView(make_rounds(), token_text=lambda token: f" <t{token}>&")
    state = {name: getattr(view, name) for name in ("rounds", "index", "lead")}
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("request", lambda request: noise.append(request.url) if request.url[:5] != "blob:" else None)
    parts = {"css": view._css, "esm": script_literal(str(view._esm)), "state": script_literal(state)}
    page.set_content(PAGE % parts)
    page.wait_for_function("window.ready")
    yield page
    assert noise == []
    page.close()


def shown(page: Page) -> int:
    """The number of the round on show; heading, picture, slider and model must agree on it."""
    heading = page.text_content(".ddtree-place")
    assert heading == page.text_content(".ddtree-tree svg > title")
    match = re.fullmatch(r"Round (\d) of 4", heading or "")
    assert match
    number = int(match[1])
    assert page.input_value(".ddtree-slider") == str(number - 1)
    assert page.evaluate("model.get('index')") == number - 1
    return number


def test_buttons_step_and_stop_at_the_ends(page: Page, tmp_path: Path) -> None:
    assert shown(page) == 1
    assert page.is_disabled(".ddtree-previous")
    for number in (2, 3, 4):
        page.click(".ddtree-next")
        assert shown(page) == number
    assert page.is_disabled(".ddtree-next")
    assert page.evaluate("window.saved") == 3
    page.screenshot(path=tmp_path / "round_4.png")
    assert (tmp_path / "round_4.png").stat().st_size > 10_000
    page.click(".ddtree-previous")
    assert shown(page) == 3


def test_text_so_far_marks_what_the_round_added(page: Page) -> None:
    page.click(".ddtree-next")
    assert page.text_content(".ddtree-text") == " <t1>& <t1001>& <t1>& <t1002>&"
    assert page.text_content(".ddtree-text mark") == " <t1>& <t1002>&"
    facts = page.text_content(".ddtree-facts") or ""
    assert "acceptance length2" in facts
    assert "50.0 ms: verify 50.0" in facts


def test_slider_moves_by_mouse_and_by_script(page: Page) -> None:
    page.fill(".ddtree-slider", "2")
    assert shown(page) == 3
    box = page.locator(".ddtree-slider").bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)
    assert shown(page) == 4


def test_arrow_keys_step_and_reach_nothing_else(page: Page) -> None:
    page.evaluate("document.addEventListener('keydown', (event) => { window.leaked = event.key; }, true)")
    page.focus(".ddtree-view")
    for key, number in [("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("End", 4), ("Home", 1)]:
        page.keyboard.press(key)
        assert shown(page) == number
    page.focus(".ddtree-slider")
    page.keyboard.press("ArrowRight")
    assert shown(page) == 2  # one step, not the slider's own step and then another
    assert page.evaluate("window.leaked") is None
    page.keyboard.press("Shift+Enter")  # a shortcut of the surrounding application
    assert page.evaluate("window.leaked") == "Enter"


def test_round_set_from_outside_is_shown(page: Page) -> None:
    page.evaluate("model.set('index', 3)")
    assert shown(page) == 4


def test_large_tree_scrolls_to_the_accepted_path_and_fits_on_demand(page: Page) -> None:
    page.evaluate("model.set('index', 3)")
    frame = page.locator(".ddtree-tree").bounding_box()
    bonus = page.locator(".ddtree-tree g[data-state=bonus] g").bounding_box()
    picture = page.locator(".ddtree-tree svg").bounding_box()
    assert frame
    assert bonus
    assert picture
    assert picture["height"] > frame["height"]
    assert frame["y"] <= bonus["y"] <= frame["y"] + frame["height"] - bonus["height"]
    page.click(".ddtree-fit")
    fitted = page.locator(".ddtree-tree svg").bounding_box()
    assert fitted
    assert fitted["height"] <= frame["height"]
    assert fitted["height"] / fitted["width"] == pytest.approx(picture["height"] / picture["width"], rel=0.02)


def test_disposed_view_hears_no_more_keys(page: Page) -> None:
    page.focus(".ddtree-view")
    page.evaluate("window.dispose()")
    page.keyboard.press("ArrowRight")
    assert shown(page) == 1
