"""Parameters from the command line, the choice of notebooks, and what a result depends on."""

from pathlib import Path
from typing import Any

import pytest

from ddtree_core.reporting.report import notebook_source
from ddtree_core.reporting.report.notebook_source import (
    assign,
    digest,
    find_notebooks,
    parse_value,
    select,
)
from tests.reporting.report.report_pages import write_notebook


@pytest.mark.parametrize(
    ("text", "type_name", "value"),
    [
        ("32", "int", 32),
        ("-1", "int", -1),
        ("1e-3", "float", 0.001),
        ("1", "float", 1.0),
        ("false", "bool", False),
        ("Yes", "bool", True),
        ("007", "str", "007"),
        ("8,16", "list[int]", [8, 16]),
        ("[8, 16]", "list[int]", [8, 16]),
        ("8", "list[int]", [8]),
        ("[]", "list[int]", []),
        ("chat,code", "list[str]", ["chat", "code"]),
        ('["a, b"]', "list[str]", ["a, b"]),
        ("0, 0.7", "list[float]", [0.0, 0.7]),
        ("3", "None", 3),
        ("tiny-llama", "None", "tiny-llama"),
    ],
)
def test_values_are_read_by_their_annotation(text: str, type_name: str, value: Any) -> None:
    made = parse_value("x", text, type_name)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("text", "type_name"),
    [
        ("x", "int"),
        ("1.5", "int"),
        ("true", "int"),
        ("x", "float"),
        ("1", "bool"),
        ("8,x", "list[int]"),
        ("[8", "list[int]"),
        ("[1.5]", "list[int]"),
        ("[true]", "list[int]"),
    ],
)
def test_a_value_of_another_type_is_refused(text: str, type_name: str) -> None:
    with pytest.raises(ValueError, match=r"^parameter 'x' takes [\w\[\]]+(, for example .*)?, not '.*'$"):
        parse_value("x", text, type_name)


def test_each_notebook_gets_the_parameters_that_it_has(tmp_path: Path) -> None:
    write_notebook(tmp_path, "02_a", parameters="pair: str = 'tiny'")
    write_notebook(tmp_path, "03_b", parameters="pair: str = 'tiny'\nbudgets: list[int] = [8]  # nodes")
    write_notebook(tmp_path, "04_c", parameters="budgets: list[int] = [8]")
    made = assign(find_notebooks(tmp_path), [("pair", "x"), ("budgets", "1,2")], {"pair": "y", "other": "z"})
    assert made == {
        "02_a": {"pair": "x"},
        "03_b": {"pair": "x", "budgets": [1, 2]},
        "04_c": {"budgets": [1, 2]},
    }


def test_notebooks_are_chosen_by_number_or_name(tmp_path: Path) -> None:
    for name in ("10_last", "02_a", "03_b", "notes"):
        write_notebook(tmp_path, name)
    notebooks = find_notebooks(tmp_path)
    assert [notebook.name for notebook in notebooks] == ["02_a", "03_b", "10_last"]
    assert [notebook.name for notebook in select(notebooks, "10, 02_a")] == ["02_a", "10_last"]
    with pytest.raises(ValueError, match="no notebook '07': there are 02_a, 03_b, 10_last"):
        select(notebooks, "07")


def test_a_file_that_a_parameter_names_is_part_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_notebook(tmp_path / "notebooks", "03_a", parameters="prompts: list[str] = []")
    (notebook,) = find_notebooks(tmp_path / "notebooks")
    monkeypatch.setenv("DDTREE_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text("one")

    def fingerprint() -> str:
        return digest(notebook, {"prompts": ["./mine.jsonl", "chat"], "text": "x" * 9999 + "\0"})

    first = fingerprint()
    assert fingerprint() == first
    (tmp_path / "mine.jsonl").write_text("two")
    assert fingerprint() != first


def test_the_package_is_part_of_the_fingerprint_and_its_page_layout_is_not() -> None:
    names = {name for name, _ in notebook_source._file_digests()}
    assert {"stats.py", "draft_tree.py", "view.js"} <= names
    assert not {"batch.py", "export.py", "report.css"} & names
