"""A request for a text: everything that can be wrong with it is found before any work."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import torch

from ddtree_core.decoding.arguments import shown, whole_number
from ddtree_core.decoding.clock import Clock
from ddtree_core.decoding.prompts import Prompt, encode_prompt
from ddtree_core.decoding.sampling import Sampler
from ddtree_core.decoding.stopping import Stop, Stopper
from ddtree_core.models import ModelPair
from ddtree_core.trees import MAX_BUDGET, DraftTree, best_first, chain

METHODS = ("ddtree", "dflash", "autoregressive")
DEFAULT_BUDGET = 16


@dataclass(frozen=True, eq=False)
class Request:
    """What to generate and how, checked in full when it is made: `ValueError` with one sentence."""

    pair: ModelPair
    prompt: Prompt  # text, chat messages or token ids
    method: str = "ddtree"  # trees; "dflash": chains; "autoregressive": no drafts
    _: KW_ONLY
    budget: int | None = None  # draft nodes of a "ddtree" tree, 16 unless given; None for other methods
    sampler: Sampler | None = None  # greedy unless given
    max_new_tokens: int = 128
    stop: Stop | None = None  # token ids and strings, beside the pair's own stop tokens
    generator: torch.Generator | None = None  # seeds sampling
    clock: Clock | None = None  # times the stages
    prompt_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._check_types()
        if self.method not in METHODS:
            raise ValueError(f"unknown method {shown(self.method)}; expected one of {', '.join(METHODS)}")
        budget = DEFAULT_BUDGET if self.budget is None else _whole("budget", self.budget)
        if not 0 <= budget <= MAX_BUDGET:
            raise ValueError(
                f"budget is {budget}, expected 0 to {MAX_BUDGET} draft nodes (16 to 64 is usual)"
            )
        limit = _whole("max_new_tokens", self.max_new_tokens)
        if limit < 1:
            raise ValueError(f"max_new_tokens is {limit}, expected at least 1")
        self._set(
            budget=budget if self.method == "ddtree" else None,
            max_new_tokens=limit,
            prompt_ids=encode_prompt(self.pair.tokenizer, self.prompt, **self.pair.template),
        )
        self._check_prompt()
        self.stopper()  # refuses what cannot be a stop

    def stopper(self) -> Stopper:
        """What ends this text, with nothing read yet."""
        pair = self.pair
        return Stopper.parse(pair.tokenizer, self.stop, pair.stop_ids, self.max_new_tokens, self.prompt_ids)

    @property
    def grow(self) -> Callable[..., DraftTree]:
        """What makes a draft tree of a drafter's logits."""
        return chain if self.budget is None else partial(best_first, budget=self.budget)

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_types(self) -> None:
        if not isinstance(self.pair, ModelPair):
            raise ValueError(f"pair is {shown(self.pair)}, expected a pair from load_pair")
        for name, kind, example in (
            ("sampler", Sampler, "Sampler(temperature=0.7)"),
            ("generator", torch.Generator, "torch.Generator().manual_seed(0)"),
            ("clock", Clock, "Clock()"),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"{name} is {shown(value)}, expected {example} or None")

    def _check_prompt(self) -> None:
        """Refuse ids that the target has no row for, and texts that its positions do not reach."""
        rows, n = self.pair.vocab_size, len(self.prompt_ids)
        if max(self.prompt_ids) >= rows:
            raise ValueError(
                f"the prompt holds token ids outside 0..{rows - 1}; encode it with this pair's tokenizer"
            )
        depth = 0 if self.method == "autoregressive" else self.pair.draft.depth
        depth = depth if self.budget is None else min(depth, self.budget)
        self.pair.positions.check(self.pair.name, n, self.max_new_tokens, depth)


def _whole(name: str, value: object) -> int:
    number = whole_number(value)
    if number is None:
        raise ValueError(f"{name} is {shown(value)}, expected a whole number")
    return number
