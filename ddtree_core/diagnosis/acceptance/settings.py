"""What if the drafter were run in another way? Other settings of its wiring, tried on a few transcripts.

Nothing is known of the right setting: each cause has a few candidates, taken from where integrations go
wrong, and the target's own tokens tell for which of them the drafter was trained.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddtree_core.diagnosis.acceptance.scratch import Scratch
from ddtree_core.diagnosis.acceptance.wiring import Wiring
from ddtree_core.models.borrowed import Borrowed
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.pair import ModelPair

Setting = tuple[str, dict[str, Any]]  # what it is, and the fields of the wiring that it changes
FINALISTS = 3  # causes that get a second look, at every place
ONE_SIDED_95 = 1.64  # standard errors
MIN_GAIN = 0.04  # nats per token; less is not worth mentioning


@dataclass(frozen=True)
class Gain:
    """What the best other setting for one cause would bring."""

    cause: str
    setting: str
    changes: dict[str, Any]  # fields of the wiring
    nats: float  # per token of the target
    error: float  # standard error

    @property
    def clear(self) -> bool:
        return is_clear(self.nats, self.error)


def is_clear(nats: float, error: float) -> bool:
    """Whether a difference is more than chance, and worth mentioning."""
    return nats > MIN_GAIN and nats > ONE_SIDED_95 * error


@torch.inference_mode()
def best_gains(pair: ModelPair, scratch: Scratch) -> list[Gain]:
    """For every cause, the best of its other settings; the most promising are measured at every place."""
    draft = scratch.draft
    longest = max(len(transcript.ids) for transcript in scratch.transcripts)

    def gain(cause: str, setting: Setting, everywhere: bool = False) -> Gain:
        name, changes = setting
        other = scratch.rewired(changes)
        one, two = (s.scores if everywhere else s.sampled_scores for s in (scratch, other))
        return Gain(cause, name, changes, float((two - one).mean()), scratch.standard_error(two - one))

    best = {
        cause: max(
            (gain(cause, setting) for setting in options),
            key=lambda found: found.nats,
            default=Gain(cause, "there is no other", {}, 0.0, 0.0),
        )
        for cause, options in settings(pair, draft.model, draft.wiring, longest).items()
    }
    for first in sorted(best.values(), key=lambda found: -found.nats)[:FINALISTS]:
        if first.nats > MIN_GAIN / 2:
            best[first.cause] = gain(first.cause, (first.setting, first.changes), everywhere=True)
    return list(best.values())


def settings(pair: ModelPair, model: DFlashModel, wiring: Wiring, longest: int) -> dict[str, list[Setting]]:
    """Settings other than the wiring's, by cause. `longest` is the longest context at hand, in tokens."""
    layers, ids = len(wiring.causal), wiring.layer_ids
    depth = pair.model.config.get_text_config(decoder=True).num_hidden_layers
    moved = {offset: tuple(k + offset for k in ids) for offset in (-2, -1, 1, 2)}
    orders = {"ascending": tuple(sorted(ids)), "descending": tuple(sorted(ids, reverse=True))}
    sliding = tuple(window is not None for window in wiring.windows)
    masks = {sliding: "causal where sliding", (False,) * layers: "bidirectional", (True,) * layers: "causal"}
    windows = [None, *(w for w in (16, 64, 256, 1024, 2048, 4096) if w < longest)]
    return {
        "anchor token": [(f"root in slot 0: {not wiring.anchor}", {"anchor": not wiring.anchor})],
        "layer ids": [
            (f"ids {offset:+d}", {"layer_ids": new})
            for offset, new in moved.items()
            if 0 <= min(new) <= max(new) < depth
        ],
        "feature order": [(name, {"layer_ids": new}) for name, new in orders.items() if new != ids],
        "feature norm": [
            (f"{'before' if wiring.normed else 'after'} the final norm", {"normed": not wiring.normed})
        ],
        "block mask": [(name, {"causal": new}) for new, name in masks.items() if new != wiring.causal],
        "sliding window": [
            (f"window {window}", {"windows": new})
            for window in windows
            if (new := (window,) * layers) != wiring.windows
        ],
        "positions": [
            (f"block {shift:+d}", {"block_shift": wiring.block_shift + shift}) for shift in (-1, 1)
        ],
        **_rotary(pair, wiring),
        "mask token": _mask_tokens(pair, wiring),
        **_tables(pair, model, wiring),
        "precision": [(str(model.norm.weight.dtype), {"dtype": model.norm.weight.dtype})]
        if wiring.dtype != model.norm.weight.dtype
        else [],
    }


def _rotary(pair: ModelPair, wiring: Wiring) -> dict[str, list[Setting]]:
    target = pair.model.config.get_text_config(decoder=True)
    own, theirs = wiring.rope, dict(getattr(target, "rope_parameters", None) or {})
    theta = own["rope_theta"]
    thetas = {1e4, 1e5, 1e6, 1e7, theirs.get("rope_theta") or theta} - {theta}
    if own.get("rope_type", "default") != "default":
        scalings = [{"rope_type": "default", "rope_theta": theta}]
    else:
        scalings = (
            [{**theirs, "rope_theta": theta}] if theirs.get("rope_type") not in (None, "default") else []
        )
    layout = "halves" if wiring.interleaved else "neighbours"
    return {
        "RoPE theta": [(f"theta {t:g}", {"rope": {**own, "rope_theta": t}}) for t in sorted(thetas)],
        "RoPE scaling": [(f"{rope['rope_type']} RoPE", {"rope": rope}) for rope in scalings],
        "partial rotary": [
            (f"{share:.0%} of the head", {"rotated": share})
            for share in (0.25, 0.5, 1.0)
            if share != wiring.rotated
        ],
        "RoPE layout": [(layout, {"interleaved": not wiring.interleaved})],
    }


def _mask_tokens(pair: ModelPair, wiring: Wiring) -> list[Setting]:
    """Added tokens of the tokenizer and the first id behind them, those that are embedded alike but once."""
    tokenizer: Any = pair.tokenizer
    size = pair.model.config.get_text_config(decoder=True).vocab_size
    found = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values(), len(tokenizer)}
    ids = torch.tensor(
        [wiring.mask_token_id, *sorted(i for i in found if i < size)], device=pair.draft.device
    )
    rows = torch.nn.functional.normalize(wiring.embed(ids).float(), dim=-1)
    alike = (rows @ rows.T).tril(-1) > 0.999
    new = ids[~alike.any(1)].tolist()[1:]
    return [(f"mask {token}", {"mask_token_id": token}) for token in new]


def _tables(pair: ModelPair, model: DFlashModel, wiring: Wiring) -> dict[str, list[Setting]]:
    """The target's own tables, where the drafter reads others: compared on a few ids and hidden states."""
    target, device = pair.model, pair.draft.device
    theirs, columns = Borrowed(target, device), slice(None) if model.vocabulary is None else model.vocabulary

    def head(hidden: Tensor) -> Tensor:
        return theirs.logits(hidden)[..., columns]

    size = target.config.get_text_config(decoder=True).vocab_size
    ids = torch.arange(0, size, max(1, size // 64), device=device)
    probes = torch.randn(4, model.norm.weight.shape[0], generator=torch.Generator().manual_seed(0))
    probes = probes.to(model.norm.weight)
    given, own = wiring.head(probes[None]), head(probes[None])
    same = given.shape == own.shape and torch.allclose(given, own, rtol=1e-2, atol=1e-2 * float(own.std()))
    return {
        "embedding": []
        if torch.equal(wiring.embed(ids), theirs.embed(ids))
        else [("the target's", {"embed": theirs.embed})],
        "output head": [] if same else [("the target's", {"head": head})],
    }
