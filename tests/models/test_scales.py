"""What targets do around their tables reaches their drafters: held against the target's own forward."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Cohere2Config,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from ddtree_core.models import UnsupportedModelError
from ddtree_core.models.borrowed import Borrowed
from ddtree_core.models.scales import Scales, scales_of
from ddtree_core.models.tiny import tiny_target
from tests.models.shapes import SHAPE

GRANITE = GraniteConfig(**SHAPE, logits_scaling=16.0, embedding_multiplier=12.0)
TARGETS: dict[str, tuple[PreTrainedConfig, Scales]] = {
    "plain": (LlamaConfig(**SHAPE), Scales()),
    # Its forward multiplies the embedding by 12 and divides the logits by 16.
    "granite": (GRANITE, Scales(embedding=12.0, table=12.0, head=1 / 16)),
    "cohere2": (Cohere2Config(**SHAPE, logit_scale=0.25), Scales(head=0.25)),
    # Its embedding module multiplies by the root of the hidden size itself.
    "gemma3": (Gemma3TextConfig(**SHAPE), Scales(table=8.0)),
    "gemma2, capped": (Gemma2Config(**SHAPE, final_logit_softcapping=3.0), Scales(table=8.0, softcap=3.0)),
    "falcon-h1": (
        FalconH1Config(**SHAPE, embedding_multiplier=3.0, lm_head_multiplier=0.5),
        Scales(embedding=3.0, table=3.0, head=0.5),
    ),
    "learned positions": (OPTConfig(**SHAPE), Scales()),  # which are added: no factor
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TARGETS)
def test_the_scales_of_a_target(name: str, dtype: torch.dtype) -> None:
    config, expected = TARGETS[name]
    model: Any = tiny_target(config)
    found = scales_of(model.to(dtype))
    near = 1e-5 if dtype == torch.float32 else 1e-3
    assert found.softcap == expected.softcap
    factors, right = ((s.embedding, s.table, s.head) for s in (found, expected))
    assert factors == pytest.approx(right, rel=near)


def last_hidden(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """What the model's head reads at every place."""
    kept: list[Tensor] = []
    head: Any = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _module, args: kept.append(args[0]))
    with torch.inference_mode():
        model(input_ids=ids)
    hook.remove()
    return kept[0]


@pytest.mark.parametrize("own_head", [False, True])
@pytest.mark.parametrize("name", [name for name in TARGETS if name != "falcon-h1"])
def test_one_hidden_state_gives_the_targets_own_logits(name: str, own_head: bool) -> None:
    """Through the target's wrapper and through what its drafter borrows, the drafter's own copy included."""
    model, ids = tiny_target(TARGETS[name][0]), torch.arange(5)[None]
    hidden = last_hidden(model, ids)
    head: Any = model.get_output_embeddings() if own_head else None
    with torch.inference_mode():
        said = model(input_ids=ids).logits
        borrowed = Borrowed(model, torch.device("cpu"), head=head).logits(hidden)
    torch.testing.assert_close(borrowed, said, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("own_table", [False, True])
@pytest.mark.parametrize("name", ["plain", "granite", "gemma3"])
def test_a_block_is_embedded_as_the_targets_first_block_gets_it(name: str, own_table: bool) -> None:
    model, ids, entered = tiny_target(TARGETS[name][0]), torch.arange(5), []
    source: Any = model.get_input_embeddings()
    table = nn.Embedding.from_pretrained(source.weight.detach()) if own_table else None
    decoder: Any = model.get_decoder()
    decoder.layers[0].register_forward_pre_hook(
        lambda _module, args, kwargs: entered.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    with torch.inference_mode():
        model(input_ids=ids[None])
        embedded = Borrowed(model, torch.device("cpu"), embedding=table).embed(ids)
    torch.testing.assert_close(embedded, entered[0][0], rtol=1e-5, atol=1e-6)


class Shifted(LlamaForCausalLM):
    """Adds a bias of its own to every token's logit."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out: Any = super().forward(*args, **kwargs)
        out.logits = out.logits + torch.linspace(-3, 3, out.logits.shape[-1])
        return out


def test_a_head_with_more_around_it_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="Shifted does more to the output of its head"):
        scales_of(Shifted(LlamaConfig(**SHAPE)).eval())


def test_a_target_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, passes = tiny_target(LlamaConfig(**SHAPE)), []
    model.register_forward_hook(lambda *_: passes.append(1))
    for _ in range(3):
        Borrowed(model, torch.device("cpu"))
    assert len(passes) == 1
