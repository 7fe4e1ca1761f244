"""Time the drafter's pass as training and as live decoding use it, on random weights of SmolLM2's shape.

    python benchmarks/drafter.py --rows 1 2 4 --threads 1

Prints medians of CPU time in milliseconds: an optimiser step on 8 texts of 200 tokens with 32 blocks of 8
slots each, and a live draft of 7 tokens when so many new rows arrive behind a context of 200.
"""

import argparse
import time
from statistics import median
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel

from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.packed import pack_linears
from ddtree_core.models.tiny import tiny_target
from ddtree_core.training.batches import Batch
from ddtree_core.training.initialise import draft_config, new_drafter
from ddtree_core.training.train import DrafterPlan, Tables, batch_loss

HIDDEN, VOCABULARY, DRAFTED, LENGTH = 576, 49152, 8192, 200
IDS = range(5)  # captured blocks
SHAPE: dict[str, Any] = {"hidden_size": HIDDEN, "intermediate_size": 1536, "num_hidden_layers": len(IDS)}
HEADS: dict[str, Any] = {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}


def random_batch(texts: int = 8, anchors: int = 32) -> Batch:
    rows = (texts, LENGTH - 1)
    ids, at = torch.randint(VOCABULARY, (texts, LENGTH)), torch.randint(40, LENGTH - 1, (texts, anchors))
    return Batch(ids, torch.randn(*rows, len(IDS) * HIDDEN), torch.randn(*rows, HIDDEN), at)


def step_time(model: DFlashModel, tables: Tables, batch: Batch) -> float:
    """Milliseconds of the loss and its gradients."""
    began = time.process_time()
    batch_loss(model, tables, batch, torch.ones(len(IDS) * HIDDEN), DrafterPlan(steps=1)).backward()
    return 1e3 * (time.process_time() - began)


def draft_time(model: DFlashModel, target: PreTrainedModel, rows: int) -> float:
    """Milliseconds of a draft on `rows` new rows behind a context of LENGTH."""
    drafter, features = model.open(target, []), torch.randn(LENGTH + rows, len(IDS) * HIDDEN)
    drafter.draft(features[:LENGTH], torch.arange(LENGTH))
    began = time.process_time()
    drafter.draft(features[LENGTH:], torch.arange(rows))
    return 1e3 * (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=7, help="training steps; 0 for none")
    parser.add_argument("--drafts", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = tiny_target(LlamaConfig(vocab_size=VOCABULARY, **SHAPE, **HEADS))
    config = draft_config(target, layer_ids=IDS, block_size=8, mask_token_id=2, draft_vocab_size=DRAFTED)
    vocabulary = torch.arange(0, VOCABULARY, VOCABULARY // DRAFTED)
    model = new_drafter(target, config, torch.ones(len(IDS) * HIDDEN), vocabulary)
    if args.steps:
        tables, batch = Tables(model, target), random_batch()
        times = [step_time(model, tables, batch) for _ in range(args.steps + 1)]
        print(f"training step  {median(times[1:]):8.1f} ms", flush=True)
    model.lm_head = nn.Linear(HIDDEN, DRAFTED, bias=False)
    pack_linears(model.eval().requires_grad_(False))  # as a loaded pair on a CPU
    for rows in args.rows:
        times = [draft_time(model, target, rows) for _ in range(args.drafts)]
        print(f"draft, {rows} new   {median(times):8.2f} ms", flush=True)


if __name__ == "__main__":
    main()
