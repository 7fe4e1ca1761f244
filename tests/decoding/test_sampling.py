"""Sampling: the distributions of the library's warpers, and exact samples of the target."""

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import (
    LlamaConfig,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ddtree_core.decoding import Sampler, generate
from ddtree_core.decoding.loop import rounds
from ddtree_core.decoding.sampling import COLDEST
from ddtree_core.decoding.stopping import Stopper
from ddtree_core.models import Target
from ddtree_core.models.target import Scores
from ddtree_core.models.tiny import BlurredLookahead, tiny_target
from ddtree_core.trees import Acceptance, DraftTree, best_first, tree_walk
from tests.decoding.drafts import Remembered

PROMPT, TOKENS = [0, 3, 1, 2], 3
NO_TOKENIZER: Any = None  # ids are all that is looked at


class TestProbabilities:
    LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]]).log()

    def test_temperature_by_hand(self):
        """At temperature 1/2 probabilities are squared: 25, 9, 2.25 and 0.25 hundredths, over 36.5."""
        got = Sampler(temperature=0.5).probabilities(self.LOGITS[:1])
        torch.testing.assert_close(got, torch.tensor([[25, 9, 2.25, 0.25]]) / 36.5)

    def test_top_k_by_hand(self):
        got = Sampler(temperature=1.0, top_k=2).probabilities(self.LOGITS)
        torch.testing.assert_close(got, torch.tensor([[5 / 8, 3 / 8, 0, 0], [0, 0, 3 / 7, 4 / 7]]))

    def test_top_p_by_hand(self):
        """The fewest tokens that hold at least 0.7: 0.5 + 0.3, and 0.4 + 0.3."""
        got = Sampler(temperature=1.0, top_p=0.69).probabilities(self.LOGITS)
        torch.testing.assert_close(got, torch.tensor([[5 / 8, 3 / 8, 0, 0], [0, 0, 3 / 7, 4 / 7]]))

    def test_top_p_comes_after_top_k(self):
        """Of 0.5, 0.3, 0.15 the first two hold 0.8/0.95 = 0.84, so 0.82 needs both; of all four, three."""
        got = Sampler(temperature=1.0, top_k=3, top_p=0.82).probabilities(self.LOGITS[:1])
        torch.testing.assert_close(got, torch.tensor([[5 / 8, 3 / 8, 0, 0]]))
        got = Sampler(temperature=1.0, top_p=0.82).probabilities(self.LOGITS[:1])
        torch.testing.assert_close(got, torch.tensor([[10 / 19, 6 / 19, 3 / 19, 0]]))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("top_p", [None, 0.3, 0.9])
    @pytest.mark.parametrize("top_k", [None, 1, 5, 1000])
    @pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
    def test_equal_the_librarys_warpers(self, temperature, top_k, top_p, dtype):
        logits = 3 * torch.randn(9, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
        warpers: list[Any] = [TemperatureLogitsWarper(temperature)]
        warpers += [] if top_k is None else [TopKLogitsWarper(top_k)]
        warpers += [] if top_p is None else [TopPLogitsWarper(top_p)]
        anything: Any = torch.zeros(9, 1, dtype=torch.long)
        expected = LogitsProcessorList(warpers)(anything, logits.float()).softmax(-1)  # pyright: ignore[reportArgumentType]
        got = Sampler(temperature, top_k, top_p).probabilities(logits)
        torch.testing.assert_close(got, expected)
        assert got.dtype == torch.float32

    def test_temperature_zero_is_the_limit(self):
        """Greedy; of equal logits the first, where the limit would share between them."""
        logits = torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, -1.0]])
        greedy = Sampler(temperature=0.0)
        assert greedy(logits).tolist() == [1, 0]
        assert greedy.probabilities(logits).tolist() == [[0, 1, 0], [1, 0, 0]]
        torch.testing.assert_close(
            Sampler(temperature=1e-3).probabilities(logits[:1]), greedy.probabilities(logits[:1])
        )


class TestSampler:
    LOGITS = torch.randn(50, 20, generator=torch.Generator().manual_seed(1))

    def test_a_seed_repeats(self):
        sampler = Sampler(temperature=1.0)
        runs = [sampler(self.LOGITS, torch.Generator().manual_seed(seed)).tolist() for seed in (5, 5, 6)]
        assert runs[0] == runs[1] != runs[2]

    def test_the_generator_alone_decides(self):
        sampler, state = Sampler(temperature=1.0), torch.random.get_rng_state()
        sampler(self.LOGITS, torch.Generator().manual_seed(5))
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_only_kept_tokens_are_drawn(self):
        drawn = Sampler(temperature=2.0, top_k=2)(self.LOGITS, torch.Generator().manual_seed(0))
        kept = self.LOGITS.topk(2).indices
        assert bool((drawn[:, None] == kept).any(-1).all())
        assert bool((drawn != self.LOGITS.argmax(-1)).any())

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (dict(temperature=-0.1), r"^temperature is -0\.1, expected a finite number ≥ 0 \(0 is greedy\)$"),
            (dict(temperature=math.inf), r"^temperature is inf, expected a finite number"),
            (dict(temperature=math.nan), r"^temperature is nan, expected a finite number"),
            (dict(temperature=10**400), r"^temperature is 10+…, expected a finite number"),
            (dict(temperature="0.7"), r"^temperature is '0\.7', expected a finite number"),
            (dict(temperature=True), r"^temperature is True, expected a finite number"),
            (dict(temperature=None), r"^temperature is None, expected a finite number"),
            (dict(temperature=torch.ones(3, 3)), r"^temperature is tensor\(\[\[1\., 1\., 1\.\], \[1\., 1\."),
            (dict(temperature=1e-40), r"^temperature is 1e-40, too small for float32; expected 0 \(greedy\)"),
            (dict(top_k=0), r"^top_k is 0, expected a whole number of at least 1, or None for all tokens$"),
            (dict(top_k=5.0), r"^top_k is 5\.0, expected a whole number"),
            (dict(top_k=True), r"^top_k is True, expected a whole number"),
            (dict(top_k=torch.tensor(True)), r"^top_k is tensor\(True\), expected a whole number"),
            (dict(top_p=0.0), r"^top_p is 0\.0, expected a number in \(0, 1\], or None for all tokens$"),
            (dict(top_p=1.5), r"^top_p is 1\.5, expected a number in \(0, 1\]"),
            (dict(top_p=True), r"^top_p is True, expected a number in \(0, 1\]"),
            (dict(top_p="0.9"), r"^top_p is '0\.9', expected a number in \(0, 1\]"),
            (dict(top_p=np.float64("nan")), r"^top_p is np\.float64\(nan\), expected a number in \(0, 1\]"),
        ],
        ids=str,
    )
    def test_bad_arguments_get_a_sentence(self, arguments, sentence):
        with pytest.raises(ValueError, match=sentence) as error:
            Sampler(**arguments)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("given", "same"),
        [
            ((2,), (2.0, None, None)),
            ((0,), (0.0, None, None)),
            ((np.float32(0.5), np.int64(5), np.float64(0.75)), (0.5, 5, 0.75)),
            ((torch.tensor(0.5), torch.tensor(5), torch.tensor(0.75)), (0.5, 5, 0.75)),
            ((Fraction(1, 2), None, 1), (0.5, None, 1.0)),
        ],
        ids=["whole temperature", "zero", "numpy", "torch", "fraction"],
    )
    def test_numbers_of_any_type_become_pythons_own(self, given, same):
        sampler = Sampler(*given)
        values = (sampler.temperature, sampler.top_k, sampler.top_p)
        assert values == same
        assert [type(value) for value in values] == [type(value) for value in same]
        drawn = [s(self.LOGITS, torch.Generator().manual_seed(5)).tolist() for s in (sampler, Sampler(*same))]
        assert drawn[0] == drawn[1]

    def test_the_coldest_temperature_is_greedy(self):
        drawn = Sampler(temperature=COLDEST)(self.LOGITS, torch.Generator().manual_seed(5))
        assert torch.equal(drawn, self.LOGITS.argmax(-1))


class TestUndefined:
    """Logits that name no token: NaN anywhere, +inf, or -inf alone (a token may be ruled out by -inf)."""

    nan, inf = math.nan, math.inf
    LOGITS = torch.tensor(
        [
            [0.0, nan, 9.0],
            [inf, 1.0, 0.0],
            [-inf, -inf, -inf],
            [-inf, 50.0, 0.0],
            [nan, nan, nan],
            [0, 0, 50.0],
        ]
    )

    @pytest.mark.parametrize(
        "sampler",
        [Sampler(), Sampler(1.0), Sampler(0.5), Sampler(1.0, top_k=1), Sampler(1.0, top_k=2, top_p=0.9)],
        ids=str,
    )
    def test_by_hand(self, sampler):
        chosen = sampler(self.LOGITS.clone(), torch.Generator().manual_seed(0))
        assert chosen.tolist() == [-1, -1, -1, 1, -1, 2]

    def test_the_logits_stay_as_they_were(self):
        logits = self.LOGITS.clone()
        Sampler(1.0)(logits, torch.Generator().manual_seed(0))
        assert torch.equal(logits.nan_to_num(7.0), self.LOGITS.nan_to_num(7.0))


def test_generate_repeats_with_a_seed(tiny_pair):
    pair, sampler = tiny_pair("tiny-llama"), Sampler(temperature=1.0)
    runs = [
        generate(
            pair,
            "a",
            budget=16,
            sampler=sampler,
            max_new_tokens=12,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in (1, 1, 2)
    ]
    assert runs[0].ids == runs[1].ids != runs[2].ids
    assert runs[0].temperature == 1.0


# The rest shows that samples are exact whatever is drafted: 10,000 draws of three tokens over a vocabulary of
# six, one from the prefill and two from the tree, against the 6³ products of the target's own probabilities.


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
