"""What the tests of decoding share: transformers' own `generate`, which every method must equal."""

from typing import Any

import torch

from ddtree_core.models import ModelPair

METHODS = (("autoregressive", None), ("dflash", None), ("ddtree", 8))
STORY = "The lighthouse keeper climbed the stairs twice a day."


def by_library(pair: ModelPair, ids: list[int], max_new_tokens: int, **options: Any) -> list[int]:
    """New tokens of the library's own greedy `generate` on the very same model."""
    prompt = torch.tensor([ids])
    model: Any = pair.model
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        **options,
    )
    return out[0, len(ids) :].tolist()
