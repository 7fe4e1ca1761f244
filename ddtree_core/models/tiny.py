"""Tiny pairs with random weights: every code path in a second, on any machine, without a download.

The targets are real transformers models with random weights from a seed. A trained drafter cannot exist for
them, so theirs looks ahead with the target itself and blurs what it sees: right often enough for trees to
branch, wrong often enough for chains to break.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3NextConfig,
)

SPECIAL_TOKENS = ("<|bos|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
MASK_TOKEN_ID = 256 + SPECIAL_TOKENS.index("<|mask|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHARP = 0.3  # deviation of weights that predict sharply; the usual 0.02 gives nearly flat predictions
_SHAPE: dict[str, Any] = dict(
    vocab_size=256 + len(SPECIAL_TOKENS),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=2048,
    tie_word_embeddings=False,
    initializer_range=SHARP,
    bos_token_id=256,
    eos_token_id=258,
    pad_token_id=258,
)
# Three recurrent layers to one of full attention, as published. With larger weights, recurrent layers amplify
# rounding until the library's own chunked and token-by-token forwards differ in the third decimal.
_HYBRID: dict[str, Any] = _SHAPE | dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    initializer_range=0.1,
)
_EXPERTS: dict[str, Any] = dict(
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per byte and four special tokens, with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(tokenizer_models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|bos|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        mask_token="<|mask|>",
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def tiny_config(kind: str) -> PreTrainedConfig:
    """Config of a tiny target of this kind.

    "llama", "qwen3", "sliding" (every other layer has a window of 16), or with Gated-DeltaNet layers
    "qwen3_5", "qwen3_5_moe" and "qwen3_next" (both mixtures of experts).
    """
    match kind:
        case "llama":
            return LlamaConfig(**_SHAPE)
        case "qwen3":
            return Qwen3Config(**_SHAPE)
        case "sliding":
            types = ["sliding_attention", "full_attention"] * 2
            return Qwen3Config(**_SHAPE, use_sliding_window=True, sliding_window=16, layer_types=types)
        case "qwen3_5":
            return Qwen3_5TextConfig(**_HYBRID)
        case "qwen3_5_moe":
            return Qwen3_5MoeTextConfig(**_HYBRID, **_EXPERTS)
        case "qwen3_next":
            return Qwen3NextConfig(**_HYBRID, **_EXPERTS)
    raise ValueError(f"unknown kind {kind!r} of a tiny target; the docstring of tiny_config lists them")


def tiny_target(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A target with random float32 weights drawn from `seed`, leaving the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def tiny_model(kind: str) -> PreTrainedModel:
    """The target of the tiny pair of this kind (see `tiny_config`), whose predictions are sharp."""
    config = tiny_config(kind)
    model = tiny_target(config)
    head: Any = model.get_output_embeddings()
    head.weight.data.mul_(SHARP / config.initializer_range)
    return model


@dataclass(frozen=True)
class BlurredLookahead:
    """Draft weights of a tiny pair: the target's own greedy continuation, blurred by noise from a seed.

    `noise` is the standard deviation of the noise relative to that of the logits; it grows with depth, as
    drafts get worse further out.
    """

    depth: int = 7
    noise: float = 0.35
    seed: int = 0

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return ()

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def open(self, target: PreTrainedModel, prompt_ids: list[int]) -> "LookaheadDrafter":
        return LookaheadDrafter(self, target, prompt_ids)


class LookaheadDrafter:
    """One generation with a `BlurredLookahead`: keeps the committed ids, since it reads no features."""

    vocabulary = None

    def __init__(self, draft: BlurredLookahead, target: PreTrainedModel, prompt_ids: list[int]):
        self._draft, self._target, self._ids = draft, target, prompt_ids[:1]

    @torch.inference_mode()
    def draft(
        self, features: Float[Tensor, "m width"], tokens: Int[Tensor, "m"]
    ) -> Float[Tensor, "depth vocab"]:
        """Logits of the next `depth` positions; see `Drafter.draft`."""
        self._ids = self._ids + tokens.tolist()
        generator = torch.Generator().manual_seed(self._draft.seed + len(self._ids))
        ids, rows = torch.tensor(self._ids, device=self._target.device), []
        for k in range(self._draft.depth):
            out = self._target(input_ids=ids[None], use_cache=False, logits_to_keep=1)
            logits = out.logits[0, -1].float().cpu()
            noise = torch.randn(logits.shape, generator=generator)
            rows.append(logits + noise * logits.std() * self._draft.noise * (1 + k / 4))
            ids = torch.cat([ids, logits.argmax()[None].to(ids.device)])
        return torch.stack(rows)
