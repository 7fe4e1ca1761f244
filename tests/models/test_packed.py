"""Packed linears compute what `nn.Linear` computes, and the originals are gone."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from ddtree_core.decoding import generate
from ddtree_core.models import load_pair
from ddtree_core.models.packed import PackedLinear, can_pack, pack_linears
from ddtree_core.models.tiny import tiny_target
from ddtree_core.trees import DraftTree

TEXT = "The lighthouse keeper climbed the stairs twice a day, and every evening he wrote down the weather: "


@pytest.mark.parametrize("shape", [(1, 64), (1, 1, 64), (2, 3, 64), (64, 64), (1, 17, 64)], ids=str)
@pytest.mark.parametrize("out_features", [1, 50, 256])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_a_stock_linear(shape, out_features, bias):
    torch.manual_seed(0)
    linear, x = nn.Linear(64, out_features, bias=bias), torch.randn(shape)
    with torch.inference_mode():
        right, got = linear(x), PackedLinear(linear)(x)
    assert got.shape == right.shape
    assert got.dtype == right.dtype
    assert float((got - right).abs().max() / right.abs().max()) <= 1e-5


def test_takes_rows_that_are_not_contiguous():
    torch.manual_seed(0)
    linear, x = nn.Linear(32, 16), torch.randn(32, 5).t()
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(x), linear(x))


def test_originals_are_replaced_and_freed():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.ModuleDict({"inner": nn.Linear(8, 4, bias=False)}))
    weights = [weakref.ref(module.weight) for module in model.modules() if isinstance(module, nn.Linear)]
    assert pack_linears(model) == 2
    gc.collect()
    assert [weight() for weight in weights] == [None, None]
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    assert list(model.parameters()) == []
    assert pack_linears(model) == 0


def test_a_weight_shared_with_the_embedding_stays_for_the_embedding():
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, initializer_range=0.2, tie_word_embeddings=True,
    )  # fmt: skip
    model: Any = tiny_target(config)
    ids, embedding = torch.arange(9)[None], model.get_input_embeddings()
    assert model.get_output_embeddings().weight is embedding.weight
    with torch.inference_mode():
        right, table = model(ids).logits, embedding.weight.clone()
        pack_linears(model)
        torch.testing.assert_close(model(ids).logits, right)
    assert isinstance(model.get_output_embeddings(), PackedLinear)
    assert torch.equal(model.get_input_embeddings().weight, table)


@pytest.mark.parametrize("model", [nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4).double()], ids=["bf16", "f64"])
def test_other_dtypes_are_refused(model):
    assert not can_pack(model)
    with pytest.raises(
        ValueError, match=r"^only float32 models on a CPU can be packed .* with packed=False$"
    ):
        pack_linears(model)


@pytest.mark.parametrize(
    "name", ["tiny-llama", "tiny-qwen3", "tiny-sliding", "tiny-qwen3_5", "tiny-qwen3_next"]
)
def test_a_packed_pair_decodes_to_the_same_ids(name):
    packed, stock = load_pair(name, packed=True), load_pair(name, packed=False)
    assert (packed.packed, stock.packed) == (True, False)
    assert any(isinstance(module, PackedLinear) for module in packed.model.modules())
    assert not any(isinstance(module, PackedLinear) for module in stock.model.modules())
    for method in ("autoregressive", "dflash", "ddtree"):
        got, right = (generate(pair, TEXT, method, max_new_tokens=16) for pair in (packed, stock))
        assert got.ids == right.ids
        assert got.acceptance_lengths == right.acceptance_lengths


@pytest.mark.smollm2
def test_the_packed_default_pair_scores_a_text_like_the_stock_one(smollm2):
    """Sums run in another order: logits, which reach 32 here, were measured to differ by 9e-5."""
    stock = load_pair("smollm2-135m", packed=False)
    assert smollm2.packed
    ids = torch.tensor(stock.tokenizer(TEXT * 4).input_ids)
    tree = DraftTree(
        torch.tensor([28, 284, 253, 198]),
        torch.tensor([-1, 0, 0, 1]),
        torch.tensor([0, 1, 1, 2]),
        torch.zeros(4),
    )
    scores = []
    for pair in (smollm2, stock):
        with torch.inference_mode():
            whole = pair.model(ids[None]).logits[0]
        target = pair.open_target()
        target.prefill(ids)
        scores.append((whole, target.verify(tree).logits))
    for got, right in zip(*scores, strict=True):
        assert float((got - right).abs().max()) <= 1e-3
        assert torch.equal(got.argmax(-1), right.argmax(-1))
