"""The prompts on which drafters are measured, and which no corpus may contain."""

from ddtree_core.decoding.prompts import load_prompts
from ddtree_core.paths import data_dir
from ddtree_core.training.openings import DOMAINS


def held_out_prompts() -> list[tuple[str, str]]:
    """The prompts on which drafters are measured, never trained on, as (domain, text)."""
    return [
        (p["domain"], p["messages"][0]["content"])
        for p in load_prompts(data_dir() / "training" / "held-out.jsonl")
    ]


def never_written() -> list[str]:
    """Every prompt that a corpus must not contain: the held-out ones and the workbook's own."""
    own = [m["content"] for p in load_prompts(DOMAINS) for m in p["messages"]]
    return own + [text for _, text in held_out_prompts()]
