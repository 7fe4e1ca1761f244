"""Qwen3.5 and 3.6 checkpoints as the hub serves them load through `load_pair`, the language model alone.

The targets come from `target_files`, the drafters from `draft_files`; neither shares code with the loaders.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ddtree_core.decoding import generate
from ddtree_core.decoding.prompts import encode_prompt
from ddtree_core.models import CheckpointError, ModelPair, PairError, load_pair
from ddtree_core.models.footprint import footprint
from ddtree_core.models.tiny import MASK_TOKEN_ID
from tests.models import target_files as files
from tests.models.draft_files import BY_NAME, body_tensors, write_checkpoint, z_lab_config

# Drafters of random weights draft noise; but a first look at them must not fail.
pytestmark = [
    pytest.mark.filterwarnings("ignore:drafts of:ddtree_core.models.PairWarning"),
    pytest.mark.filterwarnings("error:a first look:ddtree_core.models.PairWarning"),
]

# The drafter of Qwen3.6-27B, four causal sliding layers below a full one, for a target of 8 layers.
SIZES: dict[str, Any] = dict(hidden=files.HIDDEN, mlp=48, ids=(0, 3, 4, 6, 7), target_layers=files.LAYERS)
DRAFTER = replace(BY_NAME["qwen3.6-27b"], block=6, **SIZES)
MESSAGES = [{"role": "user", "content": "Add 2 and 3."}]
LAYOUTS: dict[str, Callable[[bool], tuple[dict[str, Any], dict[str, Tensor]]]] = {
    "multimodal": lambda moe: (files.wrapper_config(moe), files.wrapper_tensors(moe)),
    "text only": lambda moe: (files.text_config(moe), files.text_tensors(moe)),
}
both_layouts = pytest.mark.parametrize("layout", LAYOUTS)
dense_and_moe = pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])


def write_drafter(folder: Path) -> Path:
    config: dict[str, Any] = z_lab_config(DRAFTER) | {"vocab_size": files.VOCAB}
    config["dflash_config"]["mask_token_id"] = MASK_TOKEN_ID
    return write_checkpoint(folder, config, body_tensors(DRAFTER))


def load(folder: Path, layout: str, moe: bool, **options: Any) -> ModelPair:
    """Write the target in a layout, and load it with the drafter as a user would."""
    target = files.write_target(folder / "target", *LAYOUTS[layout](moe))
    return load_pair((str(target), str(write_drafter(folder / "drafter"))), device="cpu", **options)


@both_layouts
@dense_and_moe
def test_the_language_model_is_loaded_and_nothing_else(layout: str, moe: bool, tmp_path: Path) -> None:
    pair = load(tmp_path, layout, moe, packed=False)
    assert type(pair.model).__name__ == f"Qwen3_5{'Moe' if moe else ''}ForCausalLM"
    held, stored = pair.model.state_dict(), files.wrapper_tensors(moe)
    expected = {f"model.{name}" for name in files.text_shapes(moe)} | {"lm_head.weight"}
    assert held.keys() == expected  # no vision tower, no multi-token prediction
    for name, tensor in held.items():
        assert torch.equal(tensor, stored[name.replace("model.", "model.language_model.")].float()), name
    assert pair.draft.layer_ids == DRAFTER.ids
    assert pair.stop_ids == (258, 256)
    assert pair.positions.limit == 262144


def test_the_published_layout_is_written_in_shards(tmp_path: Path) -> None:
    target = files.write_target(tmp_path, *LAYOUTS["multimodal"](False))
    assert len(list(target.glob("model-*-of-00005.safetensors"))) == 5
    named = json.loads((target / "model.safetensors.index.json").read_text())["weight_map"]
    # Names out of the published index of Qwen3.6-27B.
    assert named.keys() >= {
        "lm_head.weight",
        "model.language_model.embed_tokens.weight",
        "model.language_model.layers.0.linear_attn.A_log",
        "model.language_model.layers.0.linear_attn.in_proj_qkv.weight",
        "model.language_model.layers.3.self_attn.q_norm.weight",
        "model.visual.blocks.0.attn.qkv.weight",
        "model.visual.merger.linear_fc1.weight",
        "mtp.pre_fc_norm_embedding.weight",
    }


@dense_and_moe
def test_memory_is_asked_for_the_language_model_alone(moe: bool, tmp_path: Path) -> None:
    target = files.write_target(tmp_path / "target", *LAYOUTS["multimodal"](moe))
    count = sum(tensor.numel() for tensor in files.text_tensors(moe).values())
    drafter = write_drafter(tmp_path / "drafter")
    assert footprint((str(target), str(drafter))).target_parameters == count


def test_the_drafters_layers_are_four_causal_sliding_and_a_full_one(tmp_path: Path) -> None:
    draft: Any = load(tmp_path, "multimodal", moe=False).draft
    assert draft.config.causal == (True, True, True, True, False)
    assert draft.config.windows == (8, 8, 8, 8, None)


NAME = "model.language_model.layers.1.linear_attn.in_proj_qkv.weight"


def change(folder: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the tensors of the shard that holds NAME."""
    named = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = load_file(folder / named[NAME])
    edit(tensors)
    save_file(tensors, folder / named[NAME], metadata={"format": "pt"})


def drop(tensors: dict[str, Tensor]) -> None:
    del tensors[NAME]


def reshape(tensors: dict[str, Tensor]) -> None:
    tensors[NAME] = torch.zeros(3, files.HIDDEN)


@pytest.mark.parametrize("edit", [drop, reshape])
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(
    edit: Callable[[dict[str, Tensor]], None], tmp_path: Path
) -> None:
    target = files.write_target(tmp_path / "target", *LAYOUTS["multimodal"](False))
    change(target, edit)
    with pytest.raises(CheckpointError, match=r"lack model.layers.1.linear_attn.in_proj_qkv.weight"):
        load_pair((str(target), str(write_drafter(tmp_path / "drafter"))), device="cpu")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    target = files.write_target(tmp_path / "target", *LAYOUTS["multimodal"](False))
    (target / "model-00003-of-00005.safetensors").unlink()
    with pytest.raises(PairError, match=r"model-00003-of-00005\.safetensors"):
        load_pair((str(target), str(write_drafter(tmp_path / "drafter"))), device="cpu")


def test_a_drafter_for_another_hybrid_is_refused(tmp_path: Path) -> None:
    target = files.write_target(tmp_path / "target", *LAYOUTS["multimodal"](False))
    config = z_lab_config(DRAFTER) | {"vocab_size": files.VOCAB, "num_target_layers": 64}
    drafter = write_checkpoint(tmp_path / "drafter", config, body_tensors(DRAFTER))
    with pytest.raises(CheckpointError, match="trained for 64 target layers, this target has 8"):
        load_pair((str(target), str(drafter)), device="cpu")


def test_thinking_is_turned_on_and_off_through_the_template(tmp_path: Path) -> None:
    asked = "<|im_start|>user\nAdd 2 and 3.<|im_end|>\n<|im_start|>assistant\n<think>\n"
    silent = asked + "\n</think>\n\n"
    assert load(tmp_path, "multimodal", moe=False).template == {}
    names = (str(tmp_path / "target"), str(tmp_path / "drafter"))
    for template, expected in (
        (None, asked),
        ({"enable_thinking": True}, asked),
        ({"enable_thinking": False}, silent),
    ):
        pair = load_pair(names, device="cpu", template=template)
        ids = encode_prompt(pair.tokenizer, MESSAGES, **pair.template)
        assert pair.tokenizer.decode(ids) == expected
        assert list(generate(pair, MESSAGES, "autoregressive", max_new_tokens=1).prompt_ids) == ids


def by_library(pair: ModelPair, ids: list[int], new_tokens: int) -> list[int]:
    prompt, model = torch.tensor([ids]), pair.model
    run: Any = model.generate
    out = run(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=new_tokens)
    return out[0, len(ids) :].tolist()


@both_layouts
@dense_and_moe
def test_hybrids_from_disk_decode_as_the_library_does(layout: str, moe: bool, tmp_path: Path) -> None:
    pair = load(tmp_path, layout, moe, template={"enable_thinking": False})
    assert pair.packed  # float32 on a CPU
    expected = by_library(pair, encode_prompt(pair.tokenizer, MESSAGES, **pair.template), 16)
    for method, budget in (("autoregressive", None), ("dflash", None), ("ddtree", 1), ("ddtree", 24)):
        made = generate(pair, MESSAGES, method, budget=budget, max_new_tokens=16)
        assert made.ids == expected, (method, budget)
