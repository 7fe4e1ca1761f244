"""Samples are exact whatever is drafted.

10,000 draws of three tokens over a vocabulary of six, one from the prefill and two from the tree, are held
against the 6³ products of the target's own probabilities.
"""

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import LlamaConfig

from ddtree_core.decoding import Sampler
from ddtree_core.decoding.loop import rounds
from ddtree_core.decoding.stopping import Stopper
from ddtree_core.models import Target
from ddtree_core.models.target import Scores
from ddtree_core.models.tiny import BlurredLookahead, tiny_target
from ddtree_core.trees import Acceptance, DraftTree, best_first, tree_walk
from tests.decoding.drafts import Remembered

PROMPT, TOKENS = [0, 3, 1, 2], 3
NO_TOKENIZER: Any = None  # ids are all that is looked at


@dataclass
class TableTarget:
    """A target with the logits after each text looked up instead of computed again."""

    model: Any
    table: dict[tuple[int, ...], Tensor]
    text: tuple[int, ...] = ()

    def prefill(self, ids: Tensor) -> Scores:
        self.text = tuple(ids.tolist())
        return self.scores([self.text])

    def verify(self, tree: DraftTree) -> Scores:
        self.tree, tokens = tree, tree.token_ids.tolist()
        return self.scores([(*self.text, *(tokens[i] for i in tree.path(node))) for node in range(len(tree))])

    def commit(self, path: list[int]) -> Tensor:
        self.text = (*self.text, *self.tree.token_ids[path].tolist())
        return torch.empty(len(path), 0)

    def scores(self, texts: list[tuple[int, ...]]) -> Scores:
        return Scores(torch.stack([self.logits(text) for text in texts]), torch.empty(len(texts), 0))

    @torch.inference_mode()
    def logits(self, text: tuple[int, ...]) -> Tensor:
        if text not in self.table:
            self.table[text] = self.model(torch.tensor([text]), use_cache=False).logits[0, -1]
        return self.table[text]


class Six:
    """A one-layer target over six tokens, a drafter that is often right, trees of six draft nodes."""

    def __init__(self) -> None:
        config = LlamaConfig(
            vocab_size=6, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=32, initializer_range=0.35, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        self.model = tiny_target(config, seed=3)
        self.draft = Remembered(BlurredLookahead(depth=3, noise=0.5))
        self.table: dict[tuple[int, ...], Tensor] = {}
        self.trees: dict[tuple[int, int], DraftTree] = {}

    def grow(self, root: int, logits: Tensor, vocabulary: None) -> DraftTree:
        """Each tree is built once: half of the time of a draw would go into it."""
        key = (root, logits.data_ptr())  # the draft keeps its logits
        if key not in self.trees:
            self.trees[key] = best_first(root, logits, budget=6)
        return self.trees[key]

    def exact(self, sampler: Sampler) -> Tensor:
        """Probability of every continuation: the product of the target's own, read text by text."""
        target, joint = TableTarget(self.model, self.table), torch.zeros(6, 6, 6, dtype=torch.float64)
        for tokens in product(range(6), repeat=TOKENS):
            joint[tokens] = math.prod(
                float(sampler.probabilities(target.logits((*PROMPT, *tokens[:i]))[None])[0, token])
                for i, token in enumerate(tokens)
            )
        return joint.flatten()

    def draw(self, sampler: Sampler, count: int, real: bool = False, accept: Any = tree_walk) -> Tensor:
        """How often every continuation came, of `count`."""
        generator, found = torch.Generator().manual_seed(0), torch.zeros(6, 6, 6, dtype=torch.float64)
        for _ in range(count):
            target: Any = Target(self.model) if real else TableTarget(self.model, self.table)
            drafter, stopper = self.draft.open(self.model, PROMPT), Stopper(NO_TOKENIZER, (), (), TOKENS)
            for _round in rounds(
                target, drafter, PROMPT, self.grow, sampler, stopper, generator, accept=accept
            ):
                pass
            found[tuple(stopper.ids)] += 1
        return found.flatten()


def p_value(found: Tensor, probabilities: Tensor) -> float:
    """Chi-square test; continuations expected fewer than 5 times are counted together."""
    expected = probabilities / probabilities.sum() * found.sum()
    if bool((found[expected == 0] > 0).any()):
        return 0.0  # something impossible was drawn
    rare = expected < 5
    counts = [torch.cat([x[~rare], x[rare].sum()[None]]) for x in (found, expected)]
    kept = counts[1] > 0
    return float(stats.chisquare(counts[0][kept].numpy(), counts[1][kept].numpy()).pvalue)


@pytest.fixture(scope="module")
def six() -> Six:
    return Six()


@pytest.mark.parametrize(
    ("sampler", "count"),
    [(Sampler(1.0), 10_000), (Sampler(0.8, top_k=4), 2000), (Sampler(1.2, top_k=5, top_p=0.8), 2000)],
    ids=["plain", "top-k", "top-p"],
)
def test_samples_are_exact(six, sampler, count):
    probabilities = six.exact(sampler)
    assert float(probabilities.sum()) == pytest.approx(1)
    assert p_value(six.draw(sampler, count), probabilities) > 0.01


def test_the_test_notices_a_biased_walk(six):
    """A walk that goes on along the likeliest child where the sample was not drafted."""

    def biased(tree: DraftTree, target_tokens: Tensor) -> Acceptance:
        accepted = tree_walk(tree, target_tokens)
        if children := tree.children(accepted.path[-1]):
            path = [*accepted.path, children[0]]
            return Acceptance(path, int(target_tokens[path[-1]]))
        return accepted

    sampler = Sampler(1.0)
    assert p_value(six.draw(sampler, 1000, accept=biased), six.exact(sampler)) < 1e-6


def test_the_table_stands_for_the_real_target(six):
    assert torch.equal(six.draw(Sampler(1.0), 100, real=True), six.draw(Sampler(1.0), 100))
