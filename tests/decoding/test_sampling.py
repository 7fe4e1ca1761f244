"""Sampling: the distributions of the library's warpers, and one token for every row."""

import math
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
import torch

from ddtree_core.decoding import Sampler, generate
from ddtree_core.decoding.sampling import COLDEST


def by_definition(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> list[float]:
    """Of the top_k largest, the fewest that hold top_p of the softmax at this temperature, and no others."""
    weights = {i: math.exp(logit / temperature) for i, logit in enumerate(logits)}
    kept = sorted(weights, key=weights.__getitem__, reverse=True)[:top_k]
    if top_p is not None:
        total = sum(weights[i] for i in kept)
        sums = accumulate(weights[i] / total for i in kept)
        kept = kept[: 1 + sum(before < top_p for before in sums)]
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in weights]


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
    def test_equal_the_definition(self, temperature, top_k, top_p, dtype):
        random = torch.Generator().manual_seed(0)
        values = torch.linspace(-6, 6, 64).to(dtype)  # no two alike, also in bfloat16
        logits = torch.stack([values[torch.randperm(64, generator=random)] for _ in range(9)])
        got = Sampler(temperature, top_k, top_p).probabilities(logits)
        expected = [by_definition(row, temperature, top_k, top_p) for row in logits.tolist()]
        torch.testing.assert_close(got, torch.tensor(expected))

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
