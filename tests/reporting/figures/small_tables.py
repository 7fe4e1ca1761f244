"""Small tables that the tests of several figures draw."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.text import Text

from ddtree_core.reporting.tables import stats

METHODS = (("autoregressive", None), ("dflash", None), ("ddtree", 8), ("ddtree", 32))


def make_run() -> tuple[Any, Any]:
    """Two domains, three prompts each, four variants of 30 rounds; lengths from a fixed seed."""
    rng = np.random.default_rng(0)
    rounds, generations = [], []
    for domain in ("chat", "code"):
        for prompt in range(3):
            for method, budget in METHODS:
                keys = {"domain": domain, "prompt_id": f"{domain}-{prompt}", "method": method}
                keys |= {"budget": budget, "pair": "tiny", "packed": True, "temperature": 0.0}
                depth = 0 if method == "autoregressive" else 7
                lengths = rng.integers(1, depth + 2, size=30)
                for index, length in enumerate(lengths, start=1):
                    spent = {f"{stage}_seconds": 0.01 for stage in stats.STAGES}
                    row = {"round": index, "acceptance_length": length, "drafted_depth": depth}
                    rounds.append({**keys, **row, "n_tokens": length, **spent})
                generations.append({**keys, "n_tokens": lengths.sum(), "total_seconds": 0.05 * len(lengths)})
    tables = (pd.DataFrame(rounds), pd.DataFrame(generations))
    return tables[0].astype({"budget": "Int32"}), tables[1].astype({"budget": "Int32"})


ROUNDS, GENERATIONS = make_run()
MEMORY = pd.DataFrame({"moment": ["before", "after"], "gib": [0.5, 1.25]})
VERIFY = pd.DataFrame(
    {
        "weights": ["packed", "packed", "stock", "stock"],
        "nodes": [1, 8, 1, 8],
        "seconds": [0.04, 0.05, 0.06, 0.08],
    }
)
RULES = pd.DataFrame({"rule": ["walk"] * 4 + ["linear"] * 4, "accepted": [0, 1, 1, 2, 0, 0, 0, 1]})


def texts(figure: Any) -> list[str]:
    """What is written in a figure, in the order of its parts."""
    figure.canvas.draw()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]
