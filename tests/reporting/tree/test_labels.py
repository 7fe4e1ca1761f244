"""How a token reads in a small box."""

import pytest

from ddtree_core.reporting.tree.labels import cells, shorten, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "␣the"),
        ("\n", "↵"),
        ("\r\n\n", "↵↵"),
        ("\tif", "⇥if"),
        ("        return", "␣×8return"),
        ("\u00a0\u3000", "␣␣"),
        ("a\x00b\u200b\u202e", "ab"),
        ("👩\u200d💻", "👩\u200d💻"),
        ("�", "�"),
    ],
)
def test_whitespace_is_visible_and_the_rest_kept(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("", 0),
        ("abc", 3),
        ("日本", 4),
        ("é", 1),
        ("e\u0301", 1),
        ("🙂", 2),
        ("👩\u200d💻", 2),
        ("❤\ufe0f", 2),
    ],
)
def test_cells(text: str, width: int) -> None:
    assert cells(text) == width


def test_shorten_fits_its_limit() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abcde…"
    assert shorten("日本語文字", 6) == "日本…"  # a third one would leave no cell for the …
    assert len(shorten("e" + "\u0301" * 500, 6)) <= 25  # marks take no cell, but not endless room either
