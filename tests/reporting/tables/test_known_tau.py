"""Known acceptance lengths: what registry and drafters tell, and a measurement beside them."""

import json
from pathlib import Path

import pandas as pd
import pytest

from ddtree_core.paths import data_dir
from ddtree_core.reporting.tables.known_tau import beside_known, compare_known, known_tau

CODER = "qwen3-coder-30b-a3b"


def measured(**chain: float) -> pd.DataFrame:
    """A measurement of the chain and a tree of 16, whose τ is one larger, by domain."""
    rows = [
        row
        for domain, tau in chain.items()
        for row in (
            (domain, "autoregressive", None, "Autoregressive", 1.0),
            (domain, "dflash", None, "DFlash", tau),
            (domain, "ddtree", 16, "DDTree 16", tau + 1),
        )
    ]
    return pd.DataFrame(rows, columns=["domain", "method", "budget", "variant", "tau"])


@pytest.mark.parametrize("name", ["smollm2-135m", "hybrid-4m"])
def test_a_shipped_drafter_tells_what_it_reached(name: str) -> None:
    """The figures are those of its training.json, chains as DFlash, and all of them greedy."""
    path = data_dir() / "models" / f"{name}-dflash" / "training.json"
    reached = json.loads(path.read_text())["held_out"]
    found = known_tau(name)
    by_name = {
        ("chain" if row["method"] == "dflash" else f"tree {row['budget']:.0f}", row["dataset"]): row["tau"]
        for row in found.to_dict("records")
    }
    assert by_name == {(name, domain): tau for name, row in reached.items() for domain, tau in row.items()}
    assert set(found["temperature"]) == {0.0}
    assert set(found["source"]) == {f"held-out prompts, {name}-dflash"}


def test_published_figures_come_with_their_source() -> None:
    """DFlash, arXiv 2602.06036: 6.54 tokens per round on Qwen3-4B, greedy."""
    found = known_tau("qwen3-4b")
    row = found.loc[(found["method"] == "dflash") & (found["temperature"] == 0)].iloc[0]
    assert (row["dataset"], row["tau"], row["source"]) == ("mean", 6.54, "DFlash, arXiv 2602.06036")
    assert known_tau("tiny-llama").empty
    assert known_tau(("somewhere/target", "somewhere/drafter")).empty


def test_a_folder_of_ones_own_is_read(tmp_path: Path) -> None:
    """As training writes it; what is none is refused in one sentence."""
    (tmp_path / "training.json").write_text('{"held_out": {"tree 8": {"chat": 2.5}}}')
    found = known_tau(f"target + {tmp_path}").iloc[0]
    assert (found["dataset"], found["method"], found["budget"], found["tau"]) == ("chat", "ddtree", 8, 2.5)
    for damaged in ("{", "[]", '{"held_out": {"bush": {"chat": 2}}}', '{"held_out": {"chain": 3}}', "{}"):
        (tmp_path / "training.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"training\.json tells no acceptance lengths"):
            known_tau(("target", str(tmp_path)))


def test_measured_and_known_stand_in_one_table() -> None:
    table = beside_known(measured(chat=2.0, code=5.0), known_tau("qwen3-4b"))
    assert list(table.index) == ["DFlash", "DDTree 16", "EAGLE-3 60", "DDTree 128"]
    assert list(table.columns) == [
        ("measured here", "chat"),
        ("measured here", "code"),
        ("DFlash, arXiv 2602.06036", "mean"),
        ("DFlash, arXiv 2602.06036", "mean, T = 1"),
        ("independent, hxri/ddtreeplus, RTX 6000 Pro", "GSM8K"),
    ]
    assert table.loc["DFlash"].tolist() == ["2.00", "5.00", "6.54", "5.69", "–"]
    assert table.loc["DDTree 128"].tolist() == ["–", "–", "–", "–", "9.08"]
    coder = beside_known(measured(code=5.0), known_tau("qwen3-coder-30b-a3b"))
    assert coder.columns[1][1] == "code, T unknown"
    unknown = beside_known(measured(chat=2.0), known_tau("tiny-llama"))
    assert list(unknown.columns) == [("measured here", "chat")]


@pytest.mark.parametrize(
    ("pair", "chain", "words", "far"),
    [
        # 6.54 − 1 accepted drafts are known over all data sets: half of them is a τ of 3.77.
        (
            "qwen3-4b",
            dict(chat=1.2, code=3.76),
            "2.76 drafts per round on `code`, where 5.54 are known",
            True,
        ),
        (
            "qwen3-4b",
            dict(chat=1.2, code=3.78),
            "2.78 drafts per round on `code`, where 5.54 are known",
            False,
        ),
        # The same domain where it is known: 2.25 on chat, 7.96 on code; half accepted are 0.625 and 3.48.
        (CODER, dict(chat=1.5, code=4.0), "0.50 drafts per round on `chat`, where 1.25 are known", True),
        (CODER, dict(chat=1.75, code=4.0), "0.75 drafts per round on `chat`, where 1.25 are known", False),
        # Without that domain and without a mean, the hardest: chat.
        (CODER, dict(math=2.25), "1.25 drafts per round on `math`, where 1.25 are known", False),
    ],
)
def test_a_chain_far_below_the_known_one_is_told(
    pair: str, chain: dict[str, float], words: str, far: bool
) -> None:
    sentence = compare_known(measured(**chain), known_tau(pair))
    assert words in sentence
    assert ("notebook 06_low_acceptance_autopsy" in sentence) == far


def test_without_known_figures_one_sentence_says_so() -> None:
    sentence = compare_known(measured(chat=2.0), known_tau("tiny-llama"))
    assert sentence.startswith("No acceptance length of the chain is known for this pair")


def test_a_run_without_rounds_has_nothing_to_compare() -> None:
    nothing = measured()
    assert compare_known(nothing, known_tau("qwen3-4b")).startswith("There is no round of the chain")
    assert "DFlash" in beside_known(nothing, known_tau("qwen3-4b")).index
    assert beside_known(nothing, known_tau("tiny-llama")).empty


def test_what_a_shipped_drafter_reached_is_as_known() -> None:
    """Its own figures measured again are nothing to complain about."""
    known = known_tau("smollm2-135m")
    chain = known.loc[known["method"] == "dflash"].set_index("dataset")["tau"].drop("all")
    assert "nothing in that speaks of a fault" in compare_known(measured(**chain.to_dict()), known)
