"""What decoding costs: the figures show the numbers of their tables."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.lines import Line2D

from ddtree_core.reporting.figures.cost import speedup, stage_seconds, token_timeline
from ddtree_core.reporting.tables import stats
from tests.reporting.figures.small_tables import GENERATIONS, ROUNDS, texts


def test_a_loss_is_drawn_below_the_line_of_autoregressive_decoding() -> None:
    table = pd.DataFrame(
        {
            "domain": "chat",
            "method": ["autoregressive", "dflash", "ddtree", "ddtree"],
            "budget": pd.array([None, None, 8, 64], dtype="Int32"),
            "speedup": [1.0, 0.8, 1.5, 0.7],
            "speedup_low": np.nan,
            "speedup_high": np.nan,
        }
    )
    figure: Any = speedup(table)
    assert {"1.50", "0.70", "DFlash 0.80", "autoregressive"} <= set(texts(figure))
    levels = [line.get_ydata()[0] for line in figure.findobj(Line2D) if len(line.get_ydata()) == 2]
    assert 1.0 in levels
    assert 0.8 in levels


def test_stages_add_up_to_the_round() -> None:
    written = texts(stage_seconds(stats.stage_seconds(ROUNDS)))
    assert written.count("50.0 ms") == 4  # five stages of 10 ms, four variants


def test_the_timeline_ends_with_the_last_round() -> None:
    """30 rounds of five stages of 10 ms."""
    written = texts(token_timeline(stats.timeline(ROUNDS[ROUNDS["prompt_id"] == "code-1"])))
    ends = {"Autoregressive: 1.50 s", "DFlash: 1.50 s", "DDTree 8: 1.50 s", "DDTree 32: 1.50 s"}
    assert ends <= set(written)


def test_tables_without_what_a_figure_needs_are_refused() -> None:
    with pytest.raises(ValueError, match="no autoregressive decoding"):
        speedup(stats.speed(GENERATIONS[GENERATIONS["method"] == "ddtree"]))
    with pytest.raises(ValueError, match="shows one prompt, this table has 6"):
        token_timeline(stats.timeline(ROUNDS))


def test_one_prompt_has_no_interval_to_name() -> None:
    speeds = stats.speed(GENERATIONS[GENERATIONS["prompt_id"] == "chat-0"])
    assert not any("interval" in text for text in texts(speedup(speeds)))
