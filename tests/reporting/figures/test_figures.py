"""What holds for every exported figure: it is returned, leaves nothing behind, and shows as SVG."""

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from ddtree_core.reporting import figures
from ddtree_core.reporting.tables import stats
from tests.reporting.figures import test_autopsy as autopsy
from tests.reporting.figures import test_hybrid as hybrid
from tests.reporting.figures import test_machine as machine
from tests.reporting.figures import test_training as training
from tests.reporting.figures.small_tables import GENERATIONS, MEMORY, ROUNDS, RULES, VERIFY, texts

ONE_PROMPT = ROUNDS[ROUNDS["prompt_id"] == "code-1"]
DRAWN: dict[str, Callable[[str], Any]] = {
    "acceptance_by_depth": lambda c: figures.acceptance_by_depth(stats.acceptance_by_depth(ROUNDS), c),
    "acceptance_by_slot": lambda c: figures.acceptance_by_slot(autopsy.TABLE, c),
    "acceptance_histograms": lambda c: figures.acceptance_histograms(stats.acceptance_histogram(ROUNDS), c),
    "confusion_matrix": lambda c: figures.confusion_matrix(autopsy.TABLE, c),
    "examined": lambda c: figures.examined(autopsy.SYMPTOMS, c),
    "faults_by_share": lambda c: figures.faults_by_share(autopsy.TABLE, c),
    "layer_cost": lambda c: figures.layer_cost(hybrid.COST, c),
    "mean_acceptance": lambda c: figures.mean_acceptance(stats.mean_acceptance(ROUNDS), c),
    "memory_bars": lambda c: figures.memory_bars(MEMORY, 16.0, c),
    "node_errors": lambda c: figures.node_errors(hybrid.ERRORS, c),
    "placement": lambda c: figures.placement(machine.TABLE, c),
    "rule_histograms": lambda c: figures.rule_histograms(RULES, c),
    "speedup": lambda c: figures.speedup(stats.speed(GENERATIONS), c),
    "stage_seconds": lambda c: figures.stage_seconds(stats.stage_seconds(ROUNDS), c),
    "token_timeline": lambda c: figures.token_timeline(stats.timeline(ONE_PROMPT), c),
    "training_progress": lambda c: figures.training_progress(training.LOSSES, training.ACCEPTANCE, c),
    "tree_memory": lambda c: figures.tree_memory(hybrid.MEMORY, c),
    "verify_cost": lambda c: figures.verify_cost(VERIFY, c),
}


def test_every_exported_figure_is_drawn_here() -> None:
    assert sorted(DRAWN) == figures.__all__


NO_ROUNDS = ROUNDS.iloc[:0]
EMPTY: dict[str, Callable[[str], Any]] = {
    "acceptance_by_depth": lambda c: figures.acceptance_by_depth(stats.acceptance_by_depth(NO_ROUNDS), c),
    "acceptance_histograms": lambda c: figures.acceptance_histograms(
        stats.acceptance_histogram(NO_ROUNDS), c
    ),
    "mean_acceptance": lambda c: figures.mean_acceptance(stats.mean_acceptance(NO_ROUNDS), c),
    "mean_acceptance of a summary": lambda c: figures.mean_acceptance(
        stats.summary(NO_ROUNDS, GENERATIONS), c
    ),
    "stage_seconds": lambda c: figures.stage_seconds(stats.stage_seconds(NO_ROUNDS), c),
    "token_timeline": lambda c: figures.token_timeline(stats.timeline(NO_ROUNDS), c),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_run_without_rounds_gets_one_sentence(name: str) -> None:
    """As with one new token, which comes from the prefill."""
    title, *others = texts(EMPTY[name]("n = 6 prompts"))
    assert title == texts(DRAWN[name.split()[0]](""))[0]
    assert others == ["There is no round with drafts to show", "n = 6 prompts"]


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_shows_as_svg_with_a_text_alternative_and_leaves_nothing_behind(name: str) -> None:
    before = dict(mpl.rcParams)
    figure = DRAWN[name]("n = 6 prompts")
    assert isinstance(figure, Figure)
    bundle: dict[str, str] = figure._repr_mimebundle_()  # pyright: ignore[reportAttributeAccessIssue]
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before
    assert ElementTree.fromstring(bundle["image/svg+xml"]).tag == "{http://www.w3.org/2000/svg}svg"
    assert "date>" not in bundle["image/svg+xml"]  # a figure drawn again is no change
    title, *others = texts(figure)
    assert bundle["text/plain"].startswith(title)
    assert "n = 6 prompts" in others
