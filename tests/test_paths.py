"""Where things are kept, and what a path given by the user means."""

import os
from pathlib import Path

import pytest

from ddtree_core import paths


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DDTREE_DATA", "DDTREE_CACHE", "DDTREE_CALLER", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_a_relative_path_is_meant_from_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.caller_path("mine.jsonl") == tmp_path / "mine.jsonl"
    monkeypatch.setenv("DDTREE_CALLER", "/somewhere")  # a kernel, started from there
    assert paths.caller_path("./mine.jsonl") == Path("/somewhere/mine.jsonl")
    assert paths.caller_path("/else/mine.jsonl") == Path("/else/mine.jsonl")


def test_settings_may_be_relative_or_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDTREE_CALLER", "/somewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DDTREE_DATA", "mydata")
    monkeypatch.setenv("DDTREE_CACHE", "~/models")
    assert paths.data_dir() == Path("/somewhere/mydata")
    assert paths.cache_dir() == tmp_path / "models"


def test_defaults_are_the_checkout_and_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.data_dir() == paths.project_root() / "data"
    assert paths.cache_dir() == tmp_path / ".cache" / "ddtree"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert paths.cache_dir() == Path("/cache/ddtree")


def test_without_a_home_folder_one_sentence_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry in the list of users."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(ValueError, match="set DDTREE_CACHE to a folder that can be written"):
        paths.cache_dir()
    with pytest.raises(ValueError, match="no home folder is known for '~/x': give a path without ~"):
        paths.caller_path("~/x")


@pytest.mark.parametrize("name", ["./x", "../x", "~/x", "/x", "."])
def test_what_can_only_be_a_path(name: str) -> None:
    assert paths.looks_like_path(name)


@pytest.mark.parametrize("name", ["org/model", "smollm2-135m", ".hidden", "data/models/x"])
def test_what_may_be_a_name(name: str) -> None:
    assert not paths.looks_like_path(name)
