"""How far a model's positions reach, and how long a text may become before its rotation changes.

Most rotary embeddings turn a token by its own position. Two kinds look at the length of the whole pass:
"dynamic" ones recompute their frequencies once a text outgrows the trained length, and "longrope" changes to
a second set there (transformers' `generate` then reads the whole text anew). In a draft tree the deepest node
would turn every other one with it, and keys in the cache keep their old rotation: a text has to stay on one
side.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Positions:
    """What a config says of positions; both counts are of tokens, prompt and answer together.

    `limit` is where the trained positions end, scaling included (None: nothing is said). Beyond `switch` the
    rotation is another one (None: it never changes); `second` tells whether it stays the same from there on.
    """

    limit: int | None = None
    switch: int | None = None
    second: bool = False

    def check(self, name: str, prompt: int, new: int, depth: int) -> None:
        """Raise ValueError, in one sentence, unless a text fits.

        It has `prompt` tokens and gets `new` ones from trees of at most `depth` levels below their root.
        """
        if self.limit is not None and prompt >= self.limit:
            raise ValueError(
                f"the prompt has {prompt} tokens, but {name} has {self.limit} positions; shorten the prompt"
            )
        if self.limit is not None and prompt + new > self.limit:
            raise ValueError(
                f"prompt ({prompt} tokens) and max_new_tokens ({new}) exceed the {self.limit} positions of "
                f"{name}; at most {self.limit - prompt} new tokens fit"
            )
        longest = (
            prompt + new - 1 + depth
        )  # tokens in front of the last root, the root, and what lies below it
        if self.switch is None or longest <= self.switch or (self.second and prompt > self.switch):
            return
        fitting = max(0, self.switch - prompt + 1 - depth)
        beyond = f", or a prompt of more than {self.switch}" if self.second else ""
        raise ValueError(
            f"{name} rotates all tokens in another way once a text is longer than {self.switch}, so {prompt} "
            f"prompt tokens, {new} new ones and drafts of depth {depth} cannot be verified exactly; take "
            f"max_new_tokens of {fitting} or less{beyond}"
        )


def positions_of(config: PreTrainedConfig) -> Positions:
    """The positions of a (text) config, whatever its rotary scaling is."""
    text: Any = config.get_text_config(decoder=True)
    own: int | None = getattr(text, "max_position_embeddings", None)
    limits, switches, seconds = [], [], []
    for rope in _rope_parameters(text):
        kind = str(rope.get("rope_type", "default"))
        trained = rope.get("original_max_position_embeddings") or own
        if own is not None:
            limits.append(_reach(kind, rope, own, trained))
        if kind == "longrope" or "dynamic" in kind:
            switches.append(trained if kind == "longrope" else own)
            seconds.append(kind == "longrope")
    limit = min(limits, default=own)
    switch = min((s for s in switches if s is not None), default=None)
    return Positions(limit, switch, bool(seconds) and all(seconds))


def _reach(kind: str, rope: Mapping[str, Any], own: int, trained: Any) -> int:
    """Positions that a scaled rotation reaches: factor × trained ones, where the config counts fewer."""
    if kind in ("default", "llama3", "longrope", "proportional"):
        return own
    return max(own, int(float(rope.get("factor") or 1) * trained))


def _rope_parameters(text: Any) -> Iterator[Mapping[str, Any]]:
    """Rotary parameters of a config: one set, or one per type of layer."""
    parameters = getattr(text, "rope_parameters", None) or {}
    per_layer = [value for value in parameters.values() if isinstance(value, Mapping)]
    yield from per_layer or [parameters]
