"""Prompts that the target writes itself, so that a drafter is trained on what the target will say.

A user turn is either complete from a template, or an opening that the target continues: given its chat
template up to the user's turn, an instruction-tuned model samples a plausible request (the idea of Magpie,
arXiv 2406.08464). Openings steer it to a domain; the empty opening leaves it free.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ddtree_core.paths import data_dir

DOMAINS = ("chat", "code", "math")
_SLOT = re.compile(r"\{(\w+)\}")
_NUMBERS = {"n": (2, 99), "m": (10, 999), "k": (2, 9), "j": (2, 6)}


@dataclass(frozen=True)
class Opening:
    """The beginning of a user turn: complete, or to be continued by the target."""

    domain: str
    text: str
    complete: bool


def draw_openings(count: int, seed: int, complete_share: float = 0.4) -> list[Opening]:
    """`count` openings, the domains in turn, from `data/training/openings.json`."""
    book = json.loads((data_dir() / "training" / "openings.json").read_text(encoding="utf-8"))
    random, openings = Random(seed), []
    for i in range(count):
        domain = DOMAINS[i % len(DOMAINS)]
        complete = random.random() < complete_share
        pattern = random.choice(book["complete" if complete else "openings"][domain])
        openings.append(Opening(domain, _fill(pattern, book["slots"], random), complete))
    return openings


def _fill(pattern: str, slots: dict[str, list[str]], random: Random) -> str:
    def value(match: re.Match[str]) -> str:
        slot = match[1]
        return str(random.randint(*_NUMBERS[slot])) if slot in _NUMBERS else random.choice(slots[slot])

    return _SLOT.sub(value, pattern)


def user_turn(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """What the chat template puts in front of the first user turn and behind it, up to the answer."""
    probe = "\u2063"  # a character that no template uses
    text = str(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": probe}], tokenize=False, add_generation_prompt=True
        )
    )
    before, found, behind = text.partition(probe)
    if not found or not before or not behind:
        raise ValueError(
            "the chat template does not frame the user's turn, so the target cannot write one; give prompts"
        )
    return before, behind


def sampled(generator: torch.Generator, top_k: int = 64, top_p: float = 0.92):
    """A choice of tokens at temperature 1 among the `top_k` likeliest, up to `top_p` of the probability."""

    def pick(logits: Float[Tensor, "batch vocab"]) -> Int[Tensor, "batch"]:
        values, ids = logits.float().topk(top_k, dim=-1)
        probabilities = values.softmax(-1)
        outside = probabilities.cumsum(-1) - probabilities > top_p
        chosen = torch.multinomial(probabilities.masked_fill(outside, 0), 1, generator=generator)
        return ids.gather(1, chosen)[:, 0]

    return pick


def words(text: str) -> frozenset[str]:
    """The distinct words and numbers of a text, in lower case."""
    return frozenset(re.findall(r"\w+", text.lower()))


class HeldOut:
    """Prompts that must never be trained on, and whatever reads nearly like one of them."""

    def __init__(self, texts: Iterable[str], similarity: float = 0.7):
        self._sets = [words(text) for text in texts]
        self._similarity = similarity

    def contains(self, text: str) -> bool:
        """Whether the words of `text` overlap with a held-out prompt's (Jaccard index ≥ `similarity`)."""
        own = words(text)
        return any(len(own & one) >= self._similarity * len(own | one) for one in self._sets if own | one)


def periodic(answer: Sequence[int], longest: int = 24, repeats: int = 3) -> bool:
    """Whether the answer ends in a loop: a block of at most `longest` ids, `repeats` times in a row."""
    for period in range(1, min(longest, len(answer) // repeats) + 1):
        span = max(period * repeats, 16)  # a few equal ids, as in a rule of dashes, are no loop yet
        if len(answer) >= span and all(
            answer[-i] == answer[-i - period] for i in range(1, span - period + 1)
        ):
            return True
    return False


def complete_answer(answer: str) -> str:
    """An answer that was cut off or ran into a loop, back to where it could have ended.

    Text from the first long sentence or line on that was there before is dropped, then what follows the last
    complete one; a code fence left open is closed.
    """
    seen, kept = set(), []
    for piece in re.findall(r".+?(?:[.!?:](?=\s)|\n+|$)\s*", answer, flags=re.DOTALL):
        key = piece.strip()
        if len(key) >= 32 and key in seen:
            break
        seen.add(key)
        kept.append(piece)
    if kept and not re.search(r"([.!?]|```)\s*$|\n\s*$", kept[-1]):
        kept.pop()
    text = "".join(kept).rstrip()
    return text + "\n```" if text.count("```") % 2 else text
