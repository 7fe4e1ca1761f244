"""A new drafter for a target: its shape, its vocabulary, and first weights from the target's last layers."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3Config

from ddtree_core.models.draft_config import DFlashConfig
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.target import decoder_layers
from ddtree_core.training.corpus import Corpus


def draft_config(
    target: PreTrainedModel,
    *,
    layer_ids: Sequence[int],
    block_size: int,
    mask_token_id: int,
    layers: int = 2,
    draft_vocab_size: int | None = None,
    intermediate_size: int | None = None,
) -> DFlashConfig:
    """The shape of a drafter for `target`: its hidden size and heads, `layers` full-attention layers.

    `mask_token_id` is a token that the target never writes; `draft_vocab_size` None drafts every token.
    """
    text = target.config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    body = Qwen3Config(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=intermediate_size or text.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=text.num_key_value_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        rms_norm_eps=text.rms_norm_eps,
        max_position_embeddings=text.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": text.rope_parameters["rope_theta"]},
    )
    return DFlashConfig(
        body=body,
        block_size=block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=tuple(layer_ids),
        num_target_layers=text.num_hidden_layers,
        target_hidden_size=text.hidden_size,
        draft_vocab_size=draft_vocab_size or text.vocab_size,
        causal=(False,) * layers,
        windows=(None,) * layers,
    )


def frequent_tokens(corpus: Corpus, numbers: Sequence[int], size: int) -> Int[Tensor, "size"]:
    """The `size` ids that occur most often in the answers of the texts `numbers`, in ascending order."""
    counts: Counter[int] = Counter()
    for number in numbers:
        text = corpus[number]
        counts.update(text.ids[text.prompt_length :].tolist())
    if len(counts) < size:
        raise ValueError(
            f"the answers hold {len(counts)} distinct tokens, {size} were asked for; ask for fewer"
        )
    return torch.tensor(sorted(token for token, _ in counts.most_common(size)))


def feature_scale(corpus: Corpus, numbers: Sequence[int]) -> Float[Tensor, "width"]:
    """Root mean square of every feature channel over some texts; training divides features by it."""
    features = torch.cat([corpus[number].features.float() for number in numbers])
    return features.square().mean(0).sqrt().clamp_min(1e-6)


def new_drafter(
    target: PreTrainedModel,
    config: DFlashConfig,
    scale: Float[Tensor, "width"],
    vocabulary: Int[Tensor, "vocab"] | None = None,
    seed: int = 0,
) -> DFlashModel:
    """A drafter to train on features divided by `scale`, in float32 on the CPU.

    Its layers begin as the target's last ones where shapes agree, and `fc` hands the last captured block's
    output on; the rest is random from `seed`. The output head is the target's and stays frozen.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DFlashModel(config)
        nn.init.normal_(model.fc.weight, std=0.2 * float(scale.mean()) / model.fc.in_features**0.5)
    sources: list[Any] = list(decoder_layers(target))[-len(model.layers) :]
    hidden = config.body.hidden_size
    with torch.no_grad():
        for layer, source in zip(model.layers, sources, strict=True):
            _take_over(layer, source)
        model.fc.weight[:, -hidden:].diagonal().copy_(scale[-hidden:])
        model.hidden_norm.weight.copy_(_gain(sources[0].input_layernorm, hidden))
        decoder: Any = target.get_decoder()
        model.norm.weight.copy_(_gain(decoder.norm, hidden))
    model.vocabulary = vocabulary
    return model


def continued(
    model: DFlashModel,
    scale: Float[Tensor, "width"],
    vocabulary: Int[Tensor, "vocab"] | None = None,
) -> DFlashModel:
    """A finished drafter, to train on with features divided by `scale` and over another vocabulary."""
    model.lm_head = None  # training reads the target's rows
    model.vocabulary = vocabulary
    model.requires_grad_(True)
    with torch.no_grad():
        model.fc.weight.mul_(scale)
    return model


def _take_over(layer: Any, source: Any) -> None:
    """Copy what fits from a layer of the target; queries and keys, not normalised there, get a norm."""
    for name in ("input_layernorm", "post_attention_layernorm"):
        norm = getattr(layer, name)
        norm.weight.copy_(_gain(getattr(source, name), len(norm.weight)))
    for part in ("self_attn", "mlp"):
        theirs = dict(getattr(source, part, nn.Module()).named_parameters())
        for name, weight in getattr(layer, part).named_parameters():
            if weight.dim() == 2 and name in theirs and theirs[name].shape == weight.shape:
                weight.copy_(theirs[name])
    attention, gain = layer.self_attn, layer.input_layernorm.weight
    for norm, projection in ((attention.q_norm, attention.q_proj), (attention.k_norm, attention.k_proj)):
        # The size that the projection gives to an input of unit variance.
        norm.weight.fill_(float((projection.weight * gain).square().sum(1).mean().sqrt()))


def _gain(norm: Any, size: int) -> Tensor:
    """What a norm layer multiplies by, whether it stores gains or gains minus one."""
    ones = torch.ones(1, size, dtype=next(norm.parameters()).dtype)
    return norm(ones.to(next(norm.parameters()).device))[0].float().cpu()
