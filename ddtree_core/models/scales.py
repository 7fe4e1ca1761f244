"""What a target's own forward does around its embedding and its output head: measured, whatever its class.

Granite multiplies the embedding and divides the logits, Cohere and MiniCPM scale their logits, Gemma its
embedding, some cap the logits. A drafter that reads the bare tables would draft from other numbers. So the
target reads a few tokens, and what its blocks get and what it says is set against its bare tables.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from ddtree_core.models.cache import UnsupportedModelError
from ddtree_core.models.capture import captured
from ddtree_core.models.target import decoder_layers

TOKENS = 8  # read to measure


@dataclass(frozen=True)
class Scales:
    """Factors on the embedding and on the head's output, and the cap of the logits (None: no cap).

    `embedding` multiplies what the embedding module gives, `table` the bare rows of its table, which some
    modules scale themselves.
    """

    embedding: float = 1.0
    table: float = 1.0
    head: float = 1.0
    softcap: float | None = None

    def logits(self, bare: Float[Tensor, "*places vocab"]) -> Float[Tensor, "*places vocab"]:
        """What the target says, from the bare output of its head."""
        scaled = bare if self.head == 1 else bare * self.head
        return scaled if self.softcap is None else torch.tanh(scaled / self.softcap) * self.softcap


_measured: WeakKeyDictionary[PreTrainedModel, Scales] = WeakKeyDictionary()


def scales_of(target: PreTrainedModel) -> Scales:
    """What `target` does around its tables, measured once for each model in one pass over 8 tokens.

    Raises `UnsupportedModelError`, in one sentence, for logits that are no scaled and capped output of the
    head.
    """
    if target not in _measured:
        _measured[target] = _measure(target)
    return _measured[target]


@torch.inference_mode()
def _measure(target: Any) -> Scales:
    embedding, head = target.get_input_embeddings(), target.get_output_embeddings()
    text, dtype = target.config.get_text_config(decoder=True), target.dtype
    ids = torch.arange(TOKENS, device=target.device)[None] * 7919 % text.vocab_size
    said, entering, rows, bare = _read(target, ids, embedding, head)
    # Where positions are added or a norm follows, the bare rows are what a drafter is trained on.
    factor, table = _factor(entering, rows, dtype) or 1.0, 1.0
    if not embedding.weight.is_meta:
        table = _factor(rows, embedding.weight[ids].float().to(rows.device), dtype) or 1.0
    cap = getattr(text, "final_logit_softcapping", None)
    uncapped = said if cap is None else torch.atanh((said / cap).clamp(-0.999, 0.999)) * cap
    inside = uncapped.abs() < (torch.inf if cap is None else 2 * cap)  # where the cap leaves digits
    scale = _factor(uncapped[inside], bare[inside], dtype)
    if scale is None:
        raise UnsupportedModelError(
            f"{type(target).__name__} does more to the output of its head than to scale and cap it, so no "
            f"drafter can share that head; use another target"
        )
    return Scales(factor, factor * table, scale, cap)


def _read(target: Any, ids: Tensor, embedding: nn.Module, head: nn.Module) -> list[Tensor]:
    """Logits, what the first block got, and what embedding and head gave; float32, on one device."""
    entered: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        entered.append(args[0] if args else kwargs["hidden_states"])

    hook = decoder_layers(target)[0].register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with captured([embedding, head]) as outputs:
            said = target(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    return [x.float().to(said.device) for x in (said, entered[0], outputs[0], outputs[1])]


def _factor(one: Tensor, two: Tensor, dtype: torch.dtype) -> float | None:
    """The factor that makes `two` equal to `one`, but for rounding in `dtype`; None where there is none."""
    factor = float((one * two).sum() / two.square().sum())
    factor = 1.0 if abs(factor - 1) < 1e-3 else factor
    rounding = 1e-4 if dtype == torch.float32 else 3e-2
    return factor if float((one - factor * two).std() / one.std()) < rounding else None
