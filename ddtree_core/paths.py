"""Where the workbook keeps things on disk."""

import os
from pathlib import Path


def project_root() -> Path:
    """Folder of the repository that this package is imported from."""
    return Path(__file__).resolve().parents[1]


def data_dir() -> Path:
    """The `data/` folder: `$DDTREE_DATA`, else that of the checkout that this package is installed from."""
    return Path(os.environ.get("DDTREE_DATA") or project_root() / "data")


def cache_dir() -> Path:
    """Where downloaded models are kept: `$DDTREE_CACHE`, else `ddtree` in the user's cache folder."""
    if chosen := os.environ.get("DDTREE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddtree"
