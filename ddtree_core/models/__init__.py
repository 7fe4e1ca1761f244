"""All that touches transformers: targets, drafters, their checkpoints and the registry of known pairs."""

from ddtree_core.models.cache import UnsupportedModelError
from ddtree_core.models.draft_config import CheckpointError
from ddtree_core.models.first_look import FirstLook, PairWarning, first_look
from ddtree_core.models.load_pair import load_pair
from ddtree_core.models.loading import load_target
from ddtree_core.models.memory import OutOfMemoryError
from ddtree_core.models.pair import ModelPair
from ddtree_core.models.pair_spec import PairSpec
from ddtree_core.models.registry import DEFAULT_PAIR, PAIRS, PairError
from ddtree_core.models.target import Target
from ddtree_core.pypi import DownloadError

__all__ = [
    "DEFAULT_PAIR",
    "PAIRS",
    "CheckpointError",
    "DownloadError",
    "FirstLook",
    "ModelPair",
    "OutOfMemoryError",
    "PairError",
    "PairSpec",
    "PairWarning",
    "Target",
    "UnsupportedModelError",
    "first_look",
    "load_pair",
    "load_target",
]
