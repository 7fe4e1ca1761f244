"""Run folders: what is saved comes back, and no accident costs an earlier run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock

from ddtree_core.decoding.records import Generation, Round
from ddtree_core.experiments import provenance, runs
from ddtree_core.experiments.runs import RunEntry, check_run_folder, list_runs, load_run, save_run
from ddtree_core.trees.draft_tree import DraftTree


def make_round(index: int, accepted: int, tokens: list[int]) -> Round:
    """A chain of three draft nodes of which `accepted` are accepted."""
    ids = torch.tensor([9, 1, 2, 3])
    tree = DraftTree(ids, torch.tensor([-1, 0, 1, 2]), torch.arange(4), -torch.arange(4.0))
    seconds = {"draft": 0.01, "tree": 0.001, "verify": 0.02, "accept": 0.0, "commit": 0.003}
    return Round(index, tree, [1, 2, 3, 4], list(range(accepted + 1)), tokens, seconds)


def make_entry(prompt_id: str = "code-01", method: str = "ddtree", budget: int | None = 3) -> RunEntry:
    rounds = (make_round(1, 2, [1, 2, 3]), make_round(2, 1, [1]))  # the second is cut by the token limit
    seconds = {"prefill": 0.1, "draft": 0.02, "tree": 0.002, "verify": 0.04, "commit": 0.006, "total": 0.2}
    ids = [8, 1, 2, 3, 1]
    made = Generation("tiny-llama", method, budget, [5, 6], ids, "añ ✓", rounds, seconds, "length", 0.0)
    return RunEntry(prompt_id, "code", made, packed=True)


def test_a_run_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    entries = [make_entry(), make_entry("code-02", "autoregressive", None)]
    folder = save_run("first", entries, parameters={"budget": 3}, models={"target": "tiny"}, root=tmp_path)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["generations.parquet", "rounds.parquet", "run.json"]
    run = load_run("first", root=tmp_path)
    made = run.generations.iloc[0]
    assert (made["prompt_id"], made["method"]) == ("code-01", "ddtree")
    assert (made["budget"], made["packed"]) == (3, True)
    assert (made["n_prompt"], made["n_tokens"], made["n_rounds"], made["text"]) == (2, 5, 2, "añ ✓")
    assert list(made["ids"]) == [8, 1, 2, 3, 1]
    assert (made["total_seconds"], made["prefill_seconds"], made["accept_seconds"]) == (0.2, 0.1, 0.0)
    assert pd.isna(run.generations["budget"].iloc[1])
    first, second = run.rounds.iloc[0], run.rounds.iloc[1]
    assert (first["round"], first["acceptance_length"], first["accepted_depth"]) == (1, 3, 2)
    assert (first["drafted_depth"], first["n_nodes"], first["n_tokens"]) == (3, 4, 3)
    assert list(first["path"]) == [0, 1, 2]
    assert first["verify_seconds"] == 0.02
    assert (second["acceptance_length"], second["n_tokens"]) == (2, 1)  # before and after the cut
    assert len(run.rounds) == 4
    assert run.info["parameters"] == {"budget": 3}
    assert run.info["models"] == {"target": "tiny"}


def test_run_json_tells_where_the_numbers_come_from(tmp_path: Path) -> None:
    save_run("first", [make_entry()], extra={"note": "x"}, root=tmp_path)
    info = load_run("first", root=tmp_path).info
    assert info["versions"]["torch"] == torch.__version__
    assert info["hardware"]["threads"] == torch.get_num_threads()
    assert info["hardware"]["memory_gib"] > 0
    assert info["note"] == "x"
    assert {"time", "command", "commit", "versions", "hardware"} <= set(info)
    caption = load_run("first", root=tmp_path).caption
    assert caption.startswith("n = 1 prompts")
    assert torch.__version__ in caption


def test_the_commit_is_that_of_the_repository_itself(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()

    def git(*words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "one", "--no-verify")
    assert provenance.commit(tmp_path) == {"id": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "file").write_text("2")
    made = provenance.commit(tmp_path)
    assert made is not None
    assert made["dirty"] is True
    assert provenance.commit(inside) is None  # a folder in somebody else's repository


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "../x", "a\\b", ".hidden", "x" * 101, "a b", "a\n"])
def test_a_name_that_could_leave_the_folder_is_refused(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name a folder"):
        check_run_folder(run_id, root=tmp_path / "runs")
    with pytest.raises(ValueError, match="cannot name a folder"):
        load_run(run_id, root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written_is_named_before_work_starts(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(ValueError, match=r"run 'first' cannot be written under .*runs .*DDTREE_DATA"):
        check_run_folder("first", root=tmp_path / "runs")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "first").write_text("a file where the run should be")
    with pytest.raises(ValueError, match="is not a folder"):
        check_run_folder("first", root=tmp_path / "other")


def test_checking_leaves_nothing_behind(tmp_path: Path) -> None:
    assert check_run_folder("first", root=tmp_path / "runs") == tmp_path / "runs" / "first"
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_data_folder_is_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDTREE_DATA", str(tmp_path))
    save_run("first", [make_entry()])
    assert (tmp_path / "runs" / "first" / "run.json").is_file()
    assert list_runs() == ["first"]


def test_a_save_that_dies_while_writing_leaves_the_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run("first", [make_entry("old")], root=tmp_path)
    write = pq.write_table

    def die_at_the_second(table: Any, where: Path, **options: Any) -> None:
        if where.name == "generations.parquet":
            raise KeyboardInterrupt
        write(table, where, **options)

    monkeypatch.setattr(pq, "write_table", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        save_run("first", [make_entry("new")], root=tmp_path)
    assert list(load_run("first", root=tmp_path).generations["prompt_id"]) == ["old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "first"]


def test_a_save_that_dies_between_its_renames_leaves_the_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run("first", [make_entry("old")], root=tmp_path)
    rename = Path.rename

    def die_at_the_second(self: Path, target: Path) -> Path:
        if target.name == "first":
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", die_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            save_run("first", [make_entry("new")], root=tmp_path)
    assert list(load_run("first", root=tmp_path).generations["prompt_id"]) == ["old"]
    save_run("first", [make_entry("new")], root=tmp_path)
    assert list(load_run("first", root=tmp_path).generations["prompt_id"]) == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "first"]


SAVE = """
import sys
from pathlib import Path
from ddtree_core.experiments.runs import save_run
from tests.experiments.test_runs import make_entry

for number in range(30):
    name = f"{sys.argv[1]}-{number}"
    save_run("acceptance", [make_entry(name)] * int(sys.argv[2]), extra={"by": name}, root=Path(sys.argv[3]))
"""


def test_of_two_writers_and_a_reader_each_finds_whole_runs(tmp_path: Path) -> None:
    """One writes runs of one prompt, the other of three; what is read is never a mixture."""
    save_run("acceptance", [make_entry("a-0")], extra={"by": "a-0"}, root=tmp_path)
    command = [sys.executable, "-c", SAVE]
    writers = [
        subprocess.Popen([*command, name, count, str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for name, count in (("a", "1"), ("b", "3"))
    ]
    while any(writer.poll() is None for writer in writers):
        run = load_run("acceptance", root=tmp_path)
        writer = run.info["by"]
        assert list(run.generations["prompt_id"]) == [writer] * (1 if writer[0] == "a" else 3)
        assert set(run.rounds["prompt_id"]) == {writer}
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    assert load_run("acceptance", root=tmp_path).info["by"] in ("a-29", "b-29")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "acceptance"]


def test_a_run_is_read_from_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run("first", [make_entry()], root=tmp_path)
    (tmp_path / ".lock").unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert len(load_run("first", root=tmp_path).generations) == 1
    assert not (tmp_path / ".lock").exists()


def test_a_lock_that_another_process_keeps_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_run("first", [make_entry()], root=tmp_path)
    monkeypatch.setattr(runs, "LOCK_SECONDS", 0.1)
    with FileLock(tmp_path / ".lock"), pytest.raises(ValueError, match=r"another process has been holding"):
        load_run("first", root=tmp_path)


def test_a_missing_run_names_those_that_are_there(tmp_path: Path) -> None:
    save_run("kept", [make_entry()], root=tmp_path)
    with pytest.raises(ValueError, match=r"no run 'lost' .*\(kept\)"):
        load_run("lost", root=tmp_path)


def test_another_schema_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_run("first", [make_entry()], root=tmp_path)
    stored = pq.read_schema(folder / "rounds.parquet").metadata[b"schema_version"]
    assert stored == str(runs.SCHEMA_VERSION).encode()
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "schema_version": 99}))
    with pytest.raises(ValueError, match=r"schema version 1 and 99, this package reads version 1"):
        load_run("first", root=tmp_path)


@pytest.mark.parametrize("name", ["rounds.parquet", "generations.parquet", "run.json"])
def test_a_damaged_run_is_named(name: str, tmp_path: Path) -> None:
    folder = save_run("first", [make_entry()], root=tmp_path)
    (folder / name).write_bytes((folder / name).read_bytes()[:40])
    with pytest.raises(ValueError, match="run 'first' is incomplete or damaged"):
        load_run("first", root=tmp_path)
