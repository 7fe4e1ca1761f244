"""Training drafts what decoding drafts: every block equals one call of the drafter at its anchor."""

import pytest
import torch
from torch import nn
from transformers import Qwen3Config

from ddtree_core.models import ModelPair
from ddtree_core.models.borrowed import head_rows
from ddtree_core.models.draft_config import DFlashConfig
from ddtree_core.models.drafter import DFlashDrafter, DFlashModel
from ddtree_core.training.train import Tables, block_logits

KINDS = {
    "full": ((False, False), (None, None)),
    "sliding below full": ((True, False), (6, None)),
    "causal head": ((True, True), (None, None)),
    "non-causal window": ((False, False), (5, 3)),
}


def random_drafter(pair: ModelPair, causal: tuple[bool, ...], windows: tuple[int | None, ...]) -> DFlashModel:
    body = Qwen3Config(
        vocab_size=pair.model.config.vocab_size,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    config = DFlashConfig(body, 6, 259, (0, 2), 4, 64, body.vocab_size, causal=causal, windows=windows)
    torch.manual_seed(3)
    model = DFlashModel(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.3)
    return model.requires_grad_(False).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_equal_the_drafter_at_every_anchor(kind: str, pair: ModelPair):
    """Two texts of 12 and 9 rows, the shorter padded behind; anchors near the start, in between and last."""
    model = random_drafter(pair, *KINDS[kind])
    tables = Tables(model, pair.model)
    features, ids = torch.randn(2, 12, 128), torch.randint(0, 250, (2, 13))
    features[1, 9:] = 1e3  # what lies behind an anchor must not matter
    anchors = torch.tensor([[12, 1, 7, 7], [9, 4, 2, 1]])
    with torch.inference_mode():
        logits = block_logits(model, tables, features, ids.gather(1, anchors), anchors, slots=6)
        for text in range(2):
            for i, anchor in enumerate(anchors[text].tolist()):
                drafter = DFlashDrafter(model, pair.model)
                expected = drafter.draft(features[text, :anchor], ids[text, 1 : anchor + 1])
                torch.testing.assert_close(logits[text, i], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("own_head", [False, True], ids=["the target's rows", "a head of its own"])
def test_training_reads_the_head_that_decoding_reads(own_head: bool, pair: ModelPair):
    """Over every third token; a finished drafter has its rows of the target's head, or a trained head."""
    model = random_drafter(pair, *KINDS["full"])
    model.vocabulary = torch.arange(0, pair.model.config.vocab_size, 3)
    rows = head_rows(pair.model, model.vocabulary)
    if own_head:
        model.lm_head = rows
        rows.weight = nn.Parameter(torch.randn_like(rows.weight), requires_grad=False)
    features, anchors = torch.randn(1, 12, 128), torch.tensor([[12]])
    with torch.inference_mode():
        logits = block_logits(model, Tables(model, pair.model), features, torch.tensor([[7]]), anchors, 6)
        model.lm_head = rows
        expected = DFlashDrafter(model, pair.model).draft(features[0], torch.full((12,), 7))
    assert logits.shape == (1, 1, 5, len(model.vocabulary))
    torch.testing.assert_close(logits[0, 0], expected, rtol=1e-5, atol=1e-4)
