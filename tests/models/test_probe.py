"""Models that ignore positions or masks are refused, whatever their class; those that obey them are not."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BartConfig,
    Cohere2Config,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    PreTrainedConfig,
    TrOCRConfig,
)

from ddtree_core.models import Target, UnsupportedModelError, load_pair
from ddtree_core.models.probe import tolerance, tree_distance
from ddtree_core.models.tiny import tiny_config, tiny_target
from tests.models.shapes import SHAPE

DECODERS: dict[str, Any] = dict(
    vocab_size=260, d_model=64, decoder_layers=4, decoder_attention_heads=4, decoder_ffn_dim=128, init_std=0.3
)


@pytest.mark.parametrize(
    "config",
    [
        # It counts positions from the cache's length on, and takes `position_ids` without a look at them.
        BartConfig(**DECODERS, encoder_layers=4, is_decoder=True, is_encoder_decoder=False),
        TrOCRConfig(**DECODERS),
    ],
    ids=["bart", "trocr"],
)
def test_a_model_that_counts_positions_itself_is_refused(config: PreTrainedConfig) -> None:
    model = tiny_target(config)
    with pytest.raises(UnsupportedModelError, match="ignores the positions or the mask of a draft tree"):
        Target(model)
    with pytest.raises(UnsupportedModelError, match="ignores"):  # and again: one refusal is no permission
        Target(model)


class Unmasked(LlamaForCausalLM):
    """Reads every pass causally, whatever mask it is given."""

    def forward(self, *args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


def test_a_model_that_ignores_the_mask_is_refused() -> None:
    model = Unmasked(LlamaConfig(**SHAPE)).eval()
    with pytest.raises(UnsupportedModelError, match=r"Unmasked ignores .* expected at most 0\.01"):
        Target(model)


@pytest.mark.parametrize(
    "config",
    [
        *(tiny_config(kind) for kind in ("llama", "sliding", "qwen3_5", "qwen3_5_moe", "qwen3_next")),
        OPTConfig(**SHAPE),  # learned positions
        GptOssConfig(**SHAPE, head_dim=16, num_local_experts=4),
        Cohere2Config(**SHAPE),
    ],
    ids=lambda config: config.model_type,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_obey_stay_far_below_the_bound(config: PreTrainedConfig, dtype: torch.dtype) -> None:
    model: Any = tiny_target(config)
    model = model.to(dtype)
    assert tree_distance(Target(model), 260) < tolerance(dtype) / 5


def test_a_model_that_cannot_read_a_tree_is_refused_with_the_reason() -> None:
    class Failing(LlamaForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            raise TypeError("no 4-dimensional masks here")

    with pytest.raises(
        UnsupportedModelError, match=r"cannot read a small draft tree .*no 4-dimensional masks"
    ):
        Target(Failing(LlamaConfig(**SHAPE)).eval())


def test_the_probe_runs_once_for_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, passes = load_pair("tiny-llama"), []
    pair.model.register_forward_hook(lambda *_: passes.append(1))
    pair.open_target()
    pair.open_target()
    assert len(passes) == 2
