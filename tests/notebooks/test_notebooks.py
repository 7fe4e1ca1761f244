"""The notebooks: their form, and that each runs with quick parameters and finds identical texts."""

import re
import shutil
from pathlib import Path

import nbformat
import pytest

from ddtree_core.paths import data_dir
from ddtree_core.reporting.report import batch
from ddtree_core.reporting.report.notebook_source import find_notebooks

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = find_notebooks(FOLDER)
QUICK = {
    "pair": "tiny-llama",
    "max_new_tokens": "16",
    "prompts_per_domain": "2",
    "baseline_prompts": "1",
    "budgets": "[4, 8]",
    "budget": "8",
    "verify_nodes": "[1, 8]",
    "repeats": "2",
    "run_id": "quick",
    "n_prompts": "3",
    "lab_prompts": "1",
    "kinds": "qwen3_5",
    "check_nodes": "8",
    "nodes": "[4, 8]",
    "shards": "1",
    "prompts_per_shard": "16",
    "steps": "20",
    "validate_every": "10",
    "unseen": "6",
}
# Where the quick pair would miss the point.
OWN = {
    "05_hybrid_models": {"pair": "tiny-qwen3_5", "prompts_per_domain": "1"},
    "06_low_acceptance_autopsy": {
        "pair": "hybrid-4m",
        "injected": '["hybrid-4m"]',
        "prompts_per_domain": "1",
    },
}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda nb: nb.name)
def test_form(notebook):
    """The house rules of CONTRIBUTING.md."""
    cells = nbformat.read(notebook.path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert tagged == code[:1]
    for line in tagged[0].source.splitlines():
        assert ": " in line.split("=")[0], f"parameter without a type: {line}"
        assert "  # " in line, f"parameter without a comment: {line}"
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert max(len(cell.source.splitlines()) for cell in code) <= 20
    # A Styler of its own would show model text as markup: `styled` and `text_table` escape it.
    assert not any(".style" in cell.source for cell in code)
    assert any(cell.source.startswith("## What this shows") for cell in cells)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Reports and run folders of their own, with the shipped prompts and drafters."""
    data = tmp_path / "data"
    data.mkdir()
    shutil.copytree(data_dir() / "prompts", data / "prompts")
    for name in ("models", "training"):
        (data / name).symlink_to(data_dir() / name)
    monkeypatch.setenv("DDTREE_DATA", str(data))
    monkeypatch.setenv("DDTREE_CALLER", "")
    monkeypatch.setenv("DDTREE_REPORTS", str(tmp_path / "reports"))
    return tmp_path


def run(notebook, **parameters: str) -> list[str]:
    """Exit 0, and the Markdown that the notebook displayed."""
    chosen = {name: value for name, value in parameters.items() if name in notebook.parameters}
    arguments = [part for name, value in chosen.items() for part in ("-p", name, value)]
    assert batch.main(["--only", notebook.name, *arguments]) == 0
    executed = nbformat.read(batch.reports_dir() / f"{notebook.name}.ipynb", as_version=4)
    shown = [output for cell in executed.cells for output in cell.get("outputs", [])]
    return ["".join(o.data["text/markdown"]) for o in shown if "text/markdown" in o.get("data", {})]


@pytest.mark.notebook
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda nb: nb.name)
def test_runs_on_a_tiny_pair(notebook, folders):
    findings = run(notebook, **QUICK | OWN.get(notebook.name, {}))
    assert findings
    page = (folders / "reports" / f"{notebook.name}.html").read_text(encoding="utf-8")
    assert "<h1" in page
    if notebook.name == "01_vllm_linear_sampler":
        best = "Most tokens per round with the right text: **DFS tree: tree mask, depth, walk, compaction**"
        assert best in findings[-1]
    elif notebook.name != "02_load_models":  # which compares no texts
        assert any(text.startswith("**Identical.**") for text in findings)
    if notebook.name == "00_check_setup":
        assert findings[-1] == "The drafts of tiny-llama look right."
    if notebook.name == "05_hybrid_models":  # a session per shape
        assert "Sessions whose verify left every state as it was: 4 of 4." in findings[-1]
        assert "The tree layers change it at 0 of 32 nodes." in findings[-1]
    if notebook.name == "07_train_a_drafter":  # 20 steps on 15 texts already help on texts never seen
        taus = re.search(r"and from (\S+) to (\S+) \(tree 8\)", findings[-1])
        assert taus
        assert float(taus[2]) > float(taus[1])
        assert "Walking the text counted the rounds of decoding in 6 of 6 cases." in findings[-1]
    if notebook.name == "04_acceptance_lengths":
        assert any(text.startswith("No acceptance length of the chain is known") for text in findings)
        assert {p.name for p in (folders / "data" / "runs" / "quick").iterdir()} == {
            "rounds.parquet",
            "generations.parquet",
            "run.json",
        }


@pytest.mark.notebook
def test_sampling_runs(folders):
    notebook = next(nb for nb in NOTEBOOKS if nb.name == "03_run_ddtree")
    findings = run(notebook, **QUICK, temperature="0.8")
    assert any(text.startswith("Sampled:") for text in findings)


@pytest.mark.notebook
@pytest.mark.parametrize("name", ["03_run_ddtree", "04_acceptance_lengths"])
def test_texts_of_one_token_need_no_round(name, folders):
    """The only token comes from the prefill; nothing is drafted, and the report says so."""
    notebook = next(nb for nb in NOTEBOOKS if nb.name == name)
    findings = run(notebook, **QUICK | {"max_new_tokens": "1"})
    assert any(text.startswith("**Identical.**") for text in findings)
    page = (folders / "reports" / f"{name}.html").read_text(encoding="utf-8")
    assert "There is no round with drafts to show" in page


@pytest.mark.notebook
@pytest.mark.smollm2
@pytest.mark.parametrize("name", ["02_load_models", "03_run_ddtree"])
def test_runs_on_the_default_pair(name, folders, smollm2):
    notebook = next(nb for nb in NOTEBOOKS if nb.name == name)
    quick = QUICK | {"pair": smollm2.name, "max_new_tokens": "32"}
    findings = run(notebook, **quick)
    if name == "03_run_ddtree":
        assert any(text.startswith("**Identical.**") for text in findings)


def test_an_unknown_parameter_stops_before_anything_runs(folders, capsys):
    assert batch.main(["-p", "bugdets", "[4]"]) == 2
    assert "budgets" in capsys.readouterr().err
    assert not (folders / "reports").exists()
