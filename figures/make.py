"""Draw the README's pictures from real runs: `./workbook report`, then `.venv/bin/python figures/make.py`."""

from pathlib import Path

from ddtree_core import generate, load_pair
from ddtree_core.experiments.runs import load_run
from ddtree_core.reporting import figures
from ddtree_core.reporting.tables import stats
from ddtree_core.reporting.tree.view import tree_svg

HERE = Path(__file__).parent
PROMPT = "Write a Python class for a stack with push and pop methods."


def main() -> None:
    pair = load_pair()
    made = generate(pair, [{"role": "user", "content": PROMPT}], "ddtree", budget=16, max_new_tokens=96)
    best = max(made.rounds, key=lambda each: each.acceptance_length)
    title = f"Round {best.index} of {len(made.rounds)}: {best.acceptance_length} tokens in one pass"
    svg = tree_svg(best, token_text=lambda token: str(pair.tokenizer.decode([token])), title=title)
    (HERE / "draft_tree.svg").write_text(svg, encoding="utf-8")

    run = load_run("acceptance")  # what notebook 04 saves with its default parameters
    figure = figures.acceptance_histograms(stats.acceptance_histogram(run.rounds), caption=run.caption)
    figure.savefig(HERE / "acceptance_histograms.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
