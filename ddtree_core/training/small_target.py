"""A small chat model from scratch: a Qwen3.5-type hybrid and its tokenizer, trained on conversations.

Three Gated-DeltaNet layers to one of full attention, a few million parameters, its own byte-level BPE: all
that a recurrent target needs, at a size that two CPU cores train in minutes and a repository carries.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3_5TextConfig,
)

from ddtree_core.models.tiny import CHAT_TEMPLATE
from ddtree_core.training.batches import like_length
from ddtree_core.training.state import Schedule, Step, descend

SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|mask|>")
Conversation = tuple[str, str]  # the user's text and the answer, both complete
_NOTHING = -100  # label of positions that predict nothing


@dataclass(frozen=True, kw_only=True)
class TargetPlan(Schedule):
    """How long and how to train a small target."""

    conversations: int = 8  # per step
    max_tokens: int = 448  # of a conversation; the rest is cut off
    learning_rate: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.1


@dataclass(frozen=True)
class TextLoss:
    """How well a model predicts texts."""

    nats_per_token: float
    bits_per_byte: float
    tokens: int


def train_tokenizer(texts: Iterable[str], vocab_size: int = 2048) -> PreTrainedTokenizerFast:
    """A byte-level BPE over `texts`, with the chat tokens, a mask token and a chat template.

    Every digit is a token of its own, so that numbers are read alike wherever they stand.
    """
    if vocab_size < (least := 256 + len(SPECIAL_TOKENS)):
        raise ValueError(f"vocab_size is {vocab_size}; bytes and special tokens alone are {least}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", mask_token="<|mask|>"
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def hybrid_config(
    tokenizer: PreTrainedTokenizerBase, *, hidden: int = 192, layers: int = 8, mlp: int = 512
) -> Qwen3_5TextConfig:
    """Shape of a small hybrid: `layers` layers, every fourth of full attention, heads of 64 channels."""
    if hidden % 64 or layers % 4:
        raise ValueError(
            f"hidden is {hidden} and layers {layers}; hidden must be a multiple of 64, layers a multiple of 4"
        )
    heads = hidden // 64
    eos: Any = tokenizer.eos_token_id
    return Qwen3_5TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=1,
        head_dim=64,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=48,
        linear_value_head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        # No padding id: the library would never train the embedding of <|im_end|>.
        eos_token_id=eos,
    )


def new_target(config: Qwen3_5TextConfig, seed: int = 0) -> PreTrainedModel:
    """A float32 model with random weights from `seed`, whose recurrent layers begin with a memory.

    The library's initial time steps forget a token after one more. These are log-uniform between 0.001 and
    0.1, as Gated DeltaNet was trained (arXiv 2412.06464).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if name.endswith("dt_bias"):
                dt = torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(0.1)).exp()
                parameter.data.copy_(dt.expm1().log())  # softplus of it is dt
    return model


def encode_conversations(
    tokenizer: PreTrainedTokenizerBase, conversations: Iterable[Conversation], max_tokens: int
) -> list[Int[Tensor, "n"]]:
    """Ids of whole conversations in the chat template's form, at most `max_tokens` each."""
    turns = [
        [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
        for user, answer in conversations
    ]
    texts: Any = tokenizer.apply_chat_template(turns, tokenize=False)
    rows = tokenizer(texts, add_special_tokens=False).input_ids
    return [torch.tensor(row[:max_tokens]) for row in rows]


class ConversationBatches:
    """Batches of conversations of like length, padded behind; each a pure function of seed and step."""

    def __init__(self, rows: Sequence[Int[Tensor, "n"]], size: int, seed: int):
        if len(rows) < size:
            raise ValueError(
                f"there are {len(rows)} conversations, a step takes {size}; give more or take fewer per step"
            )
        self._rows, self.size, self.seed = sorted(rows, key=len), size, seed

    @property
    def per_epoch(self) -> int:
        """Steps in which every conversation is drawn once, but for a remainder."""
        return len(self._rows) // self.size

    def __getitem__(self, step: int) -> Int[Tensor, "rows n"]:
        members = like_length(step, len(self._rows), self.size, self.seed)
        return pad([self._rows[i] for i in members])


def pad(rows: Sequence[Int[Tensor, "n"]]) -> Int[Tensor, "rows n"]:
    """Rows of ids, the shorter ones filled behind with labels that count for nothing."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=_NOTHING)


def prediction_loss(
    model: PreTrainedModel, batch: Int[Tensor, "rows n"], reduction: str = "mean"
) -> Float[Tensor, ""]:
    """Cross-entropy of every next token, user's and assistant's alike, in nats."""
    # What fills a row stands behind all that counts, where neither attention nor recurrence looks.
    logits = model(input_ids=batch[:, :-1].clamp_min(0), use_cache=False).logits
    return F.cross_entropy(
        logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=_NOTHING, reduction=reduction
    )


def train_target(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Conversation],
    plan: TargetPlan,
    *,
    folder: Path | None = None,
    save_every: int = 100,
) -> Iterator[Step]:
    """Train `model` in place, one step per turn; see `descend` for `folder` and errors."""
    rows = encode_conversations(tokenizer, conversations, plan.max_tokens)
    batches = ConversationBatches(rows, plan.conversations, plan.seed)
    return descend(
        model, lambda n: prediction_loss(model, batches[n]), plan, folder=folder, save_every=save_every
    )


@torch.inference_mode()
def text_loss(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Conversation]
) -> TextLoss:
    """How well `model` predicts whole conversations, user turns and chat tokens included."""
    longest, nats, tokens, size = model.config.max_position_embeddings, 0.0, 0, 0
    for row in encode_conversations(tokenizer, conversations, longest):
        nats += float(prediction_loss(model, row[None], reduction="sum"))
        tokens += len(row) - 1
        size += len(str(tokenizer.decode(row[1:])).encode())
    return TextLoss(nats / tokens, nats / math.log(2) / size, tokens)


def save_target(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights in bfloat16, configuration and tokenizer in the published layout."""
    rounded = copy.deepcopy(model).to(dtype=torch.bfloat16)  # pyright: ignore[reportCallIssue]
    eos: Any = tokenizer.eos_token_id
    rounded.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=eos)
    rounded.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
