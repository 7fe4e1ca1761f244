"""What all trainings share: schedule, optimiser, and a state on disk from which a run continues bit for bit.

A training is a loss per step number, a pure function of the weights, the plan and that number. So a run that
was interrupted and continued sees the steps of an uninterrupted one, and ends in the same weights.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long to train and at which rates; the plans of trainings add what is their own."""

    steps: int
    learning_rate: float = 1e-3
    warmup: int = 50  # steps
    cooldown: float = 0.4  # last share of the steps, in which the rate falls linearly to zero
    weight_decay: float = 0.05  # of matrices; vectors have none
    seed: int = 0

    def rate(self, step: int) -> float:
        """The learning rate of a step: warm up, hold, cool down."""
        down = (self.steps - step) / max(1.0, self.cooldown * self.steps)
        return self.learning_rate * min(1.0, (step + 1) / self.warmup, down)


@dataclass(frozen=True)
class Step:
    """One optimiser step."""

    number: int  # 0-based
    loss: float
    seconds: float


def descend(
    model: nn.Module,
    loss: Callable[[int], Float[Tensor, ""]],
    plan: Schedule,
    *,
    folder: Path | None = None,
    save_every: int = 100,
    corpus_texts: int = 0,
) -> Iterator[Step]:
    """Minimise `loss(step number)` over the trainable parameters of `model`, one AdamW step per turn.

    With `folder`, the state is saved there every `save_every` steps and at the end, and found there by the
    next call. Raises `ValueError` for a folder that holds the state of another plan, or of a training on
    another number of texts.
    """
    optimizer, terms = _adamw(model, plan), {**asdict(plan), "corpus_texts": corpus_texts}
    first = _resume(folder, model, optimizer, terms)
    model.train()
    for number in range(first, plan.steps):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(number)
        value = loss(number)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if folder is not None and ((number + 1) % save_every == 0 or number + 1 == plan.steps):
            _save(folder, model, optimizer, terms, number + 1)
        yield Step(number, float(value.detach()), time.perf_counter() - began)


def _adamw(model: nn.Module, plan: Schedule) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95), fused=True)


def _save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, terms: dict[str, Any], steps: int
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "steps": steps,
        "plan": terms,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    unfinished = folder / ".training.pt"
    torch.save(state, unfinished)
    unfinished.replace(folder / "training.pt")


def _resume(
    folder: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, terms: dict[str, Any]
) -> int:
    """Load the state in `folder` into model and optimiser; the number of steps done, 0 without a state."""
    if folder is None or not (folder / "training.pt").is_file():
        return 0
    state = torch.load(folder / "training.pt", weights_only=True)
    if differing := [k for k, v in terms.items() if state["plan"].get(k) != v]:
        raise ValueError(
            f"{folder} holds a training with other {', '.join(differing)}; use the same plan and corpus to "
            f"continue it, or another folder"
        )
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["steps"]
