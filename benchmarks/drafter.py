"""Time the drafter's pass as training and as live decoding use it, on random weights of SmolLM2's shape.

    python benchmarks/drafter.py --rows 1 2 4 --threads 2

Prints medians in milliseconds: an optimiser step on 8 texts of 200 tokens with 32 blocks of 8 slots each, and
a live draft of 7 tokens behind a context of 200 tokens when so many new rows arrive.
"""

import argparse
import time
from dataclasses import dataclass
from statistics import median

import torch
from transformers import LlamaConfig

from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.packed import pack_linears
from ddtree_core.models.tiny import tiny_target
from ddtree_core.training.batches import Batch
from ddtree_core.training.initialise import draft_config, new_drafter
from ddtree_core.training.train import DrafterPlan, train_drafter

HIDDEN, VOCABULARY, DRAFTED, LENGTH, IDS = 576, 49152, 8192, 200, (3, 9, 15, 21, 27)
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=1536, num_hidden_layers=30,
    num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
)  # fmt: skip


@dataclass
class SameBatch:
    """Stands for a corpus: every step trains on the same random batch."""

    batch: Batch
    pool: int = 8

    def __getitem__(self, step: int) -> Batch:
        return self.batch


def random_batch(texts: int = 8, anchors: int = 32) -> Batch:
    rows = (texts, LENGTH - 1)
    ids, at = torch.randint(VOCABULARY, (texts, LENGTH)), torch.randint(40, LENGTH - 1, (texts, anchors))
    return Batch(ids, torch.randn(*rows, len(IDS) * HIDDEN), torch.randn(*rows, HIDDEN), at)


def milliseconds_of_drafts(model: DFlashModel, target, rows: int, repeats: int) -> float:
    """Median time of a draft on `rows` new rows behind a context of LENGTH."""
    drafter, width, times = model.open(target, []), len(IDS) * HIDDEN, []
    drafter.draft(torch.randn(LENGTH, width), torch.arange(LENGTH))
    for _ in range(repeats):
        features, tokens = torch.randn(rows, width), torch.arange(rows)
        began = time.perf_counter()
        drafter.draft(features, tokens)
        times.append(1e3 * (time.perf_counter() - began))
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=8, help="optimiser steps; 0 leaves training out")
    parser.add_argument("--drafts", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target, vocabulary = tiny_target(CONFIG), torch.arange(0, VOCABULARY, VOCABULARY // DRAFTED)
    config = draft_config(target, layer_ids=IDS, block_size=8, mask_token_id=2, draft_vocab_size=DRAFTED)
    model = new_drafter(target, config, torch.ones(len(IDS) * HIDDEN), vocabulary)
    if args.steps:
        plan, batches = DrafterPlan(steps=args.steps), SameBatch(random_batch())
        scale = torch.ones(len(IDS) * HIDDEN)
        steps = list(train_drafter(model, target, batches, scale, plan))  # pyright: ignore[reportArgumentType]
        print(f"training step {1e3 * median(step.seconds for step in steps[1:]):8.1f} ms", flush=True)
    model.lm_head = torch.nn.Linear(HIDDEN, DRAFTED, bias=False)
    pack_linears(model.eval().requires_grad_(False))
    for rows in args.rows:
        print(f"draft, {rows} new  {milliseconds_of_drafts(model, target, rows, args.drafts):8.2f} ms")


if __name__ == "__main__":
    main()
