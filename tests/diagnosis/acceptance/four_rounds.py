"""A drafter along transcripts, for tests that compare drafters number by number."""

import torch

from ddtree_core.diagnosis.acceptance.transcripts import Transcript
from ddtree_core.models import ModelPair


def drafts(pair: ModelPair, transcripts: list[Transcript]) -> torch.Tensor:
    """Logits of four rounds along each text, committing one, three and two tokens after the prompt."""
    rounds = []
    for transcript in transcripts:
        drafter, features, done = pair.open_drafter([]), transcript.features(pair.draft.layer_ids), 0
        for at in (transcript.prompt_length + step for step in (0, 1, 4, 6)):
            rounds.append(drafter.draft(features[done:at], transcript.ids[done + 1 : at + 1]))
            done = at
    return torch.stack(rounds)
