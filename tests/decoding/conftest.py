"""Pairs whose drafts are not made twice."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from ddtree_core.models import ModelPair
from tests.decoding.drafts import Remembered


@pytest.fixture(scope="session")
def quick_pair(tiny_pair) -> Callable[[str], ModelPair]:
    """The tiny pairs, each remembering what it drafted after which text."""
    return cache(lambda name: replace(tiny_pair(name), draft=Remembered()))
