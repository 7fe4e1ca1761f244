"""`python -m ddtree_core.diagnosis.machine`: the report, and a sentence where there is none."""

import pytest

from ddtree_core.diagnosis.machine.__main__ import main


@pytest.mark.usefixtures("no_network")
def test_the_command_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pair", "qwen3.6-27b", "--gpus", "2x48GiB"]) == 0
    out = capsys.readouterr().out
    assert "Qwen/Qwen3.6-27B, drafted for by z-lab/Qwen3.6-27B-DFlash" in out
    assert out.strip().endswith("fits: cuda:1, the tightest, keeps 18.1 GiB free.")
    assert main(["--pair", "qwen3.6-27b", "--gpus", "1x24GiB"]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert main([]) == 0  # the default pair on this machine
    out = capsys.readouterr().out
    assert "held most by" in out
    assert "smollm2-135m needs 1.9 GiB" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "2x"], "expected number x memory"),
        (["--pair", "qwen3.7"], "unknown pair"),
        (["--gpus", "1x1GiB", "--context", "0"], "expected at least one of each"),
    ],
)
def test_requests_that_cannot_be_answered_end_in_a_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
