"""The decoding loop: one loop for autoregressive, DFlash chain and DDTree decoding."""

from ddtree_core.decoding.clock import Clock
from ddtree_core.decoding.decode import Decoding, decode, generate
from ddtree_core.decoding.prompts import encode_prompt, load_prompts
from ddtree_core.decoding.records import Generation, Round
from ddtree_core.decoding.request import METHODS, Request
from ddtree_core.decoding.sampling import Sampler

__all__ = [
    "METHODS",
    "Clock",
    "Decoding",
    "Generation",
    "Request",
    "Round",
    "Sampler",
    "decode",
    "encode_prompt",
    "generate",
    "load_prompts",
]
