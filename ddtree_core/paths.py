"""Where the workbook keeps things on disk, and what a path given by its user means."""

import os
from pathlib import Path


def project_root() -> Path:
    """Folder of the repository that this package is imported from."""
    return Path(__file__).resolve().parents[1]


def caller_dir() -> Path:
    """Folder in which the user gave the command, `$DDTREE_CALLER`; kernels run in that of their notebook."""
    return Path(os.environ.get("DDTREE_CALLER") or Path.cwd())


def caller_path(path: str | Path) -> Path:
    """Absolute form of a path that the user gave, relative to the caller's folder or with `~` for the home.

    Raises ValueError where `~` is used and there is no home folder.
    """
    try:
        return caller_dir() / Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"no home folder is known for {str(path)!r}: give a path without ~") from error


def looks_like_path(name: str) -> bool:
    """Whether a name can only be a path, and not that of a model on the hub: `./x`, `../x`, `~/x` or `/x`."""
    return name.startswith(("./", "../", "~", "/")) or name in (".", "..")


def data_dir() -> Path:
    """The `data/` folder: `$DDTREE_DATA`, else that of the checkout that this package is installed from."""
    return caller_path(os.environ.get("DDTREE_DATA") or project_root() / "data")


def cache_dir() -> Path:
    """Where downloaded models are kept: `$DDTREE_CACHE`, else `ddtree` in the user's cache folder.

    Raises ValueError where neither is known.
    """
    if chosen := os.environ.get("DDTREE_CACHE"):
        return caller_path(chosen)
    try:
        return caller_path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddtree"
    except RuntimeError as error:
        raise ValueError(
            "no home folder is known to keep models in: set DDTREE_CACHE to a folder that can be written"
        ) from error
