"""A first look: silent on working pairs, one sentence where drafts will hardly be accepted."""

import copy
import importlib
import json
import shutil
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ddtree_core.diagnosis.acceptance.faults import inject
from ddtree_core.models import ModelPair, PairWarning, first_look, load_pair
from ddtree_core.models.first_look import ANSWER, LEAST_AGREEMENT, NEXT_STEP, QUESTION, warn_if_wrong
from ddtree_core.paths import data_dir

# Faults that leave the output intact and next to nothing of the acceptance.
GRAVE = (
    "anchor missing",
    "wrong mask token",
    "interleaved RoPE",
    "partial rotary",
    *(f"{table} {kind}" for table in ("embedding", "head") for kind in ("permuted", "padded", "foreign")),
    "cache not cropped",
    "context empty",
    "other target's drafter",
)
DRAFTS = 32


@pytest.fixture(scope="module")
def hybrid() -> ModelPair:
    """The shipped pair of four million parameters; a first look at it gives no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", PairWarning)
        return load_pair("hybrid-4m")


def check_warns(pair: ModelPair, words: str) -> None:
    sentence = first_look(pair).warning
    assert sentence is not None
    assert words in sentence
    assert NEXT_STEP in sentence
    assert "\n" not in sentence


def test_the_function_that_is_named_exists() -> None:
    module, _, call = NEXT_STEP.rpartition(".")
    assert call == "autopsy(pair)"
    assert callable(importlib.import_module(module).autopsy)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_working_pair_is_well_above_the_threshold(dtype: str) -> None:
    """Measured on the shipped drafter: 17 and 18 of 32 first tokens; four to spare is the margin."""
    look = first_look(load_pair("hybrid-4m", dtype=dtype, check=False))
    assert (look.warning, look.finite, look.drafted) == (None, True, DRAFTS)
    assert look.dtype == getattr(torch, dtype)
    assert look.agreed >= LEAST_AGREEMENT * DRAFTS + 4


@pytest.mark.parametrize("fault", GRAVE)
def test_grave_faults_are_seen(fault: str, hybrid: ModelPair) -> None:
    check_warns(inject(hybrid, fault), "first drafted tokens that are the target's choice: ")


@pytest.mark.smollm2
def test_the_default_pair_works_and_grave_faults_of_it_are_seen(smollm2: ModelPair) -> None:
    """Measured: 18 of 32 as it is, at most 11 with a grave fault."""
    look = first_look(smollm2)
    assert look.warning is None
    assert look.agreed >= LEAST_AGREEMENT * DRAFTS + 4
    for fault in GRAVE:
        check_warns(inject(smollm2, fault), "the target's choice: ")


@dataclass(frozen=True)
class Scripted:
    """Drafts `script[n]` behind n committed tokens, in the columns of a vocabulary that runs backwards."""

    script: dict[int, int]
    size: int
    depth: int = 2
    layer_ids: tuple[int, ...] = ()

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def open(self, target: Any, prompt_ids: list[int]) -> "ScriptedDrafter":
        return ScriptedDrafter(self)


class ScriptedDrafter:
    def __init__(self, draft: Scripted):
        self.draft_model, self.read = draft, 0
        self.vocabulary = torch.arange(draft.size).flip(0)

    def draft(self, features: Tensor, tokens: Tensor) -> Tensor:
        self.read += len(tokens)
        column = self.draft_model.size - 1 - self.draft_model.script[self.read]
        return torch.nn.functional.one_hot(torch.tensor([column, 0]), self.draft_model.size).float()


@pytest.mark.parametrize("template", [True, False], ids=["template", "no template"])
@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_agreement_by_hand(wrong: int, template: bool, tiny_pair: Any) -> None:
    """A drafter that knows the target's choices, by a plain forward pass, and misses some places of every
    other one: all agree, every other, none.
    """
    pair = tiny_pair("tiny-qwen3_5", packed=False)
    tokenizer: Any = copy.copy(pair.tokenizer)
    begin = (
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n" if template else QUESTION + "\n"
    )
    if not template:
        tokenizer.chat_template = None
    ids = torch.tensor([tokenizer(begin + ANSWER, add_special_tokens=False).input_ids])
    with torch.inference_mode():
        choices = pair.model(input_ids=ids).logits[0].argmax(-1).tolist()
    size = pair.model.config.vocab_size
    # Behind n read tokens the root is token n, so the choice is the target's behind it.
    script = {n: (token + (n % 2 < wrong)) % size for n, token in enumerate(choices)}
    look = first_look(replace(pair, tokenizer=tokenizer, draft=Scripted(script, size)))
    assert (look.agreed, look.drafted) == (DRAFTS - wrong * DRAFTS // 2, DRAFTS)
    assert look.agreement == 1 - wrong / 2
    assert (look.warning is None) == (wrong < 2)
    assert look.checks[-1].measured == f"{look.agreed} of {DRAFTS}"
    assert look.checks[-1].expected == "12 or more"  # 3/8 of them


def test_drafts_that_are_no_numbers_are_told() -> None:
    pair = load_pair("hybrid-4m", check=False)
    draft: Any = pair.draft
    draft.norm.weight.data[0] = float("inf")
    check_warns(pair, "drafts are finite numbers: no, expected yes")


def test_a_drafter_in_float16_is_told() -> None:
    """`load_pair` loads none; a pair put together by hand may have one."""
    pair = load_pair("hybrid-4m", packed=False, check=False)
    model: Any = pair.model
    draft: Any = pair.draft
    check_warns(
        replace(pair, model=model.half(), draft=draft.half()),
        "precision of the drafter: float16, expected bfloat16 or float32",
    )


def test_load_pair_warns_once_where_it_is_called(tmp_path: Path) -> None:
    """The shipped drafter with another mask token in its config: it loads, and its drafts are poor."""
    models = data_dir() / "models"
    folder = Path(shutil.copytree(models / "hybrid-4m-dflash", tmp_path / "drafter"))
    config = json.loads((folder / "config.json").read_text())
    config["dflash_config"]["mask_token_id"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    names = str(models / "hybrid-4m"), str(folder)
    with pytest.warns(PairWarning, match="drafts of hybrid-4m look wrong") as caught:
        load_pair(names)
    found = [warning for warning in caught if warning.category is PairWarning]
    assert [warning.filename for warning in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PairWarning)
        load_pair(names, check=False)


def test_a_look_that_fails_is_told_and_stops_nothing(hybrid: ModelPair) -> None:
    tokenizer: Any = copy.copy(hybrid.tokenizer)
    tokenizer.chat_template = "{{ raise_exception('a system message is needed') }}"
    with pytest.warns(PairWarning, match="a first look at hybrid-4m failed") as caught:
        warn_if_wrong(replace(hybrid, tokenizer=tokenizer))
    sentence = str(caught[0].message)
    assert "TemplateError: a system message is needed" in sentence
    assert NEXT_STEP in sentence
