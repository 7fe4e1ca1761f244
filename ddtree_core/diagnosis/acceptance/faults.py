"""Known causes of low acceptance, each as a named change of a healthy pair.

A fault gives a new pair and leaves the healthy one as it was. It touches the drafting side alone, so the text
stays the target's own, unless its `side` says otherwise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ddtree_core.decoding.prompts import Prompt, encode_prompt
from ddtree_core.diagnosis.acceptance.wired_draft import wired
from ddtree_core.diagnosis.acceptance.wiring import Wiring
from ddtree_core.models.cache import RecurrentLayer, new_cache
from ddtree_core.models.pair import ModelPair
from ddtree_core.models.target import Target, decoder_layers

Change = Callable[[ModelPair, Wiring], dict[str, Any]]  # fields of the wiring, changed


class NotApplicable(ValueError):
    """A fault that a pair cannot express; the message tells why."""


@dataclass(frozen=True)
class Fault:
    """A named fault, and the cause by which it should be recognised."""

    name: str
    cause: str  # one of `causes.CAUSES`
    apply: Callable[[ModelPair], ModelPair]
    side: str = "drafting"  # "drafting", "target" or "input"
    prompts: Callable[[ModelPair, Sequence[Prompt]], Sequence[Prompt]] = lambda pair, prompts: prompts
    cache_alone: bool = False  # the drafter's context cache; from scratch it drafts as the healthy one does


def inject(pair: ModelPair, name: str) -> ModelPair:
    """The pair with a fault. `pair` itself stays as it is.

    Raises `ValueError` for an unknown fault, and `NotApplicable` with the reason for one that this pair
    cannot express.
    """
    if name not in FAULTS:
        raise ValueError(f"unknown fault {name!r}; known are {', '.join(FAULTS)}")
    return FAULTS[name].apply(pair)


def _wired(name: str, cause: str, change: Change) -> Fault:
    def apply(pair: ModelPair) -> ModelPair:
        draft = wired(pair)
        return replace(pair, draft=draft.rewired(**change(pair, draft.wiring)))

    return Fault(name, cause, apply)


def _cached(name: str, cause: str, **changes: Any) -> Fault:
    return replace(_wired(name, cause, lambda pair, wiring: changes), cache_alone=True)


def _shifted_layers(offset: int) -> Change:
    def change(pair: ModelPair, wiring: Wiring) -> dict[str, Any]:
        ids = tuple(k + offset for k in wiring.layer_ids)
        depth = len(decoder_layers(pair.model))
        if not 0 <= min(ids) <= max(ids) < depth:
            raise NotApplicable(f"layers {list(ids)} are not among the target's {depth}")
        return {"layer_ids": ids}

    return change


def _no_window(pair: ModelPair, wiring: Wiring) -> dict[str, Any]:
    if not any(wiring.windows):
        raise NotApplicable("the drafter has no sliding layers")
    return {"windows": (None,) * len(wiring.windows)}


def _far_theta(pair: ModelPair, wiring: Wiring) -> dict[str, Any]:
    """Of the thetas in use, the one that is furthest away from the drafter's."""
    own = math.log(wiring.rope["rope_theta"])
    theta = max((1e4, 1e6, 1e7), key=lambda other: abs(math.log(other) - own))
    return {"rope": {**wiring.rope, "rope_theta": theta}}


def _scaled(pair: ModelPair, wiring: Wiring) -> dict[str, Any]:
    theta = wiring.rope["rope_theta"]
    if wiring.rope.get("rope_type", "default") != "default":
        raise NotApplicable("the drafter's RoPE is scaled as it is")
    return {"rope": {"rope_type": "linear", "factor": 4.0, "rope_theta": theta}}


def _other_special_token(pair: ModelPair, wiring: Wiring) -> dict[str, Any]:
    """Of the tokenizer's special tokens, the one whose embedding is least like the mask's."""
    tokenizer: Any = pair.tokenizer
    found = sorted(set(tokenizer.all_special_ids) - {wiring.mask_token_id})
    if not found:
        raise NotApplicable("the tokenizer has no other special token")
    special = torch.tensor(found, device=pair.draft.device)
    own = wiring.embed(special.new_tensor([wiring.mask_token_id]))
    likeness = torch.cosine_similarity(wiring.embed(special).float(), own.float())
    return {"mask_token_id": int(special[likeness.argmin()])}


def _permutation(size: int, device: torch.device) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(0)).to(device)


def _permuted(x: Tensor) -> Tensor:
    """The same, its last dimension in random order."""
    return x[..., _permutation(x.shape[-1], x.device)]


def _embedding(kind: str) -> Change:
    def change(pair: ModelPair, wiring: Wiring) -> dict[str, Any]:
        size, device = pair.model.config.get_text_config(decoder=True).vocab_size, pair.draft.device
        if kind == "foreign":  # another model's channels mean other things
            return {"embed": lambda ids: _permuted(wiring.embed(ids))}
        following = torch.arange(size, device=device).roll(-1)
        rows = following if kind == "padded" else _permutation(size, device)
        return {"embed": lambda ids: wiring.embed(rows[ids])}

    return change


def _head(kind: str) -> Change:
    def change(pair: ModelPair, wiring: Wiring) -> dict[str, Any]:
        logits = {
            "permuted": lambda hidden: _permuted(wiring.head(hidden)),
            "padded": lambda hidden: wiring.head(hidden).roll(1, -1),
            "foreign": lambda hidden: wiring.head(_permuted(hidden)),
        }
        return {"head": logits[kind]}

    return change


def _other_basis(pair: ModelPair, wiring: Wiring) -> dict[str, Any]:
    """Two targets trained apart share no basis of their hidden states."""
    hidden = pair.model.config.get_text_config(decoder=True).hidden_size
    return {"basis": _permutation(hidden, pair.draft.device)}


def _other_thinking_mode(pair: ModelPair) -> ModelPair:
    if "enable_thinking" not in str(pair.tokenizer.chat_template):
        raise NotApplicable("the chat template has no thinking mode")
    thinking = not pair.template.get("enable_thinking", True)
    return replace(pair, template={**pair.template, "enable_thinking": thinking})


def _shuffled(pair: ModelPair, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Ids of the prompts in random order: text like nothing that a drafter was trained on."""
    encoded = [torch.tensor(encode_prompt(pair.tokenizer, p, **pair.template)) for p in prompts]
    return [ids[_permutation(len(ids), ids.device)].tolist() for ids in encoded]


class _KeepsAll(RecurrentLayer):
    """A recurrent layer that commits every token it has read."""

    def keep_path(self, path: list[int]) -> None:
        super().keep_path(list(range(self.stash.rows.shape[1])) if self.stash else path)


class _LeakyTarget(Target):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for layer in self._cache.layers:
            if isinstance(layer, RecurrentLayer):
                layer.__class__ = _KeepsAll


@dataclass(frozen=True, eq=False)
class _LeakyPair(ModelPair):
    def open_target(self, features: bool = True) -> Target:
        # Autoregressive decoding rejects nothing.
        return _LeakyTarget(self.model, self.draft.layer_ids if features else (), self.draft.device)


def _leaky(pair: ModelPair) -> ModelPair:
    if not any(isinstance(layer, RecurrentLayer) for layer in new_cache(pair.model.config).layers):
        raise NotApplicable("the target has no recurrent layers")
    return _LeakyPair(**vars(pair))


_ALL = (
    _wired("anchor missing", "anchor token", lambda p, w: {"anchor": False}),
    _wired("layer ids − 1", "layer ids", _shifted_layers(-1)),
    _wired("layer ids + 1", "layer ids", _shifted_layers(1)),
    _wired("features reversed", "feature order", lambda p, w: {"layer_ids": w.layer_ids[::-1]}),
    _wired("features normed", "feature norm", lambda p, w: {"normed": True}),
    _wired("causal block", "block mask", lambda p, w: {"causal": (True,) * len(w.causal)}),
    _wired("window ignored", "sliding window", _no_window),
    _wired("window of 8", "sliding window", lambda p, w: {"windows": (8,) * len(w.windows)}),
    _wired("block shifted", "positions", lambda p, w: {"block_shift": 1}),
    _wired("context shifted", "positions", lambda p, w: {"context_shift": 1}),
    _wired("wrong theta", "RoPE theta", _far_theta),
    _wired("scaled RoPE", "RoPE scaling", _scaled),
    _wired("partial rotary", "partial rotary", lambda p, w: {"rotated": 0.25}),
    _wired("interleaved RoPE", "RoPE layout", lambda p, w: {"interleaved": True}),
    _wired("wrong mask token", "mask token", _other_special_token),
    *(
        _wired(f"embedding {kind}", "embedding", _embedding(kind))
        for kind in ("permuted", "padded", "foreign")
    ),
    *(_wired(f"head {kind}", "output head", _head(kind)) for kind in ("permuted", "padded", "foreign")),
    _cached("cache not cropped", "cache not cropped", cropped=False),
    _cached("context empty", "context missing", prompt="empty"),
    _cached("context cut", "context cut", prompt="cut"),
    _cached("context stale", "stale context", prompt="stale"),
    _cached("mask added", "added mask", mask_added=True),
    _wired("float16", "precision", lambda p, w: {"dtype": torch.float16}),
    _wired("other target's drafter", "other target", _other_basis),
    Fault("recurrent state kept", "recurrent state", _leaky, side="target"),
    Fault("other thinking mode", "chat template", _other_thinking_mode, side="input"),
    Fault("shuffled input", "input", lambda pair: pair, side="input", prompts=_shuffled),
)
FAULTS: dict[str, Fault] = {fault.name: fault for fault in _ALL}
