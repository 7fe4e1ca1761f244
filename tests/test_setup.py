"""The set-up: the files that name versions agree, and `./workbook` does what its usage says."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FILES = ("requirements.txt", "constraints.txt", "pyproject.toml")


def pins(name: str) -> dict[str, str]:
    """The `name==version` lines of a requirements file, which has no others but comments and `-c`."""
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    lines = [line for line in lines if line and line != "-c constraints.txt"]
    found = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    pairs = [(canonicalize_name(match[1]), match[2]) for match in found if match]
    assert len(pairs) == len(dict(pairs)), f"{name} names a package twice"
    return dict(pairs)


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


# The files against each other


def test_requirements_are_read_under_the_constraints_and_equal_them() -> None:
    assert "-c constraints.txt" in (ROOT / "requirements.txt").read_text().splitlines()
    direct, closure = pins("requirements.txt"), pins("constraints.txt")
    assert {name: closure.get(name) for name in direct} == direct


def test_torch_is_pinned_without_a_local_version() -> None:
    # "2.13.0+cpu" would refuse the CUDA build of the same release (PEP 440: "==2.13.0" admits both).
    assert pins("constraints.txt")["torch"] == "2.13.0"


def test_pyproject_names_the_same_packages_and_its_ranges_admit_the_pins() -> None:
    project = pyproject()["project"]
    wanted = [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["dev"]]
    direct = pins("requirements.txt")
    assert {canonicalize_name(one.name) for one in wanted} == set(direct)
    refused = [str(one) for one in wanted if direct[canonicalize_name(one.name)] not in one.specifier]
    assert not refused


def test_environment_yml_installs_python_pip_and_that_same_file() -> None:
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert conda == ["python=3.11", "pip", {"pip": ["-r requirements.txt"]}]


def test_the_python_floor_is_the_same_everywhere() -> None:
    settings = pyproject()
    assert settings["project"]["requires-python"] == ">=3.11"
    assert settings["tool"]["ruff"]["target-version"] == "py311"
    assert settings["tool"]["pyright"]["pythonVersion"] == "3.11"
    assert set(re.findall(r"version_info < \((.*?)\)", (ROOT / "workbook").read_text())) == {"3, 11"}
    assert sys.version_info >= (3, 11)


def test_constraints_hold_the_whole_closure() -> None:
    # torch pins its CUDA packages itself, and only some machines have them.
    torch_own = ("nvidia-", "cuda-", "triton")
    closure, seen, todo = pins("constraints.txt"), set(), set(pins("requirements.txt"))
    while todo:
        name = todo.pop()
        seen.add(name)
        for text in metadata.requires(name) or []:
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                todo |= {canonicalize_name(one.name)} - seen
        todo = {name for name in todo if not name.startswith(torch_own)}
    assert not seen - set(closure)


def imported_modules(path: Path) -> set[str]:
    """First names of all absolute imports in a Python file or a notebook."""
    source = path.read_text()
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(source)["cells"] if cell["cell_type"] == "code"]
        lines = [line for cell in cells for line in "".join(cell["source"]).splitlines()]
        source = "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    return {name.split(".")[0] for name in names}


def test_every_third_party_import_is_a_direct_requirement() -> None:
    sources = [p for folder in ("ddtree_core", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    sources += (ROOT / "notebooks").glob("*.ipynb")
    project = pyproject()["project"]
    optional = [Requirement(text).name for text in project["optional-dependencies"]["vllm-diagnosis"]]
    installed = metadata.packages_distributions()
    direct = {*pins("requirements.txt"), *optional, "ddtree-core"}
    stray = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources
        for module in imported_modules(path) & set(installed)
        if direct.isdisjoint(canonicalize_name(name) for name in installed[module])
    }
    assert not stray


# The command itself, in a copy whose Python records what pip is asked for instead of running it

FAKE_PYTHON = f"""#!/bin/sh
case "$1 $2" in
    "-m venv")
        mkdir -p .venv/bin
        cp "$0" .venv/bin/python
        echo "VIRTUAL_ENV=$PWD/.venv" >.venv/bin/activate ;;
    "-m pip") echo "$*" >>pip.calls; exit "${{PIP_STATUS:-0}}" ;;
    *) exec "{sys.executable}" "$@" ;;
esac
"""


class Checkout:
    """A copy of the set-up's files in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()
        for name in ("workbook", *FILES):
            shutil.copy(ROOT / name, folder / name)
        self.python = self.script("fake-python", FAKE_PYTHON)

    def script(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")}
        env = {**kept, "PYTHON": str(self.python), **environment}
        command = [str(self.folder / "workbook"), *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def installs(self) -> list[str]:
        """What pip was asked to install since the last call, options aside."""
        calls = self.folder / "pip.calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return [line.split()[-1] for line in lines if " install " in line]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a checkout")  # the space is meant


def test_workbook_is_a_posix_shell_script() -> None:
    assert (ROOT / "workbook").read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(ROOT / "workbook")], check=True)
    subprocess.run(["sh", "-n", str(ROOT / ".githooks" / "pre-commit")], check=True)


def test_usage_names_every_command(checkout: Checkout) -> None:
    for arguments in [(), ("help",), ("--help",)]:
        result = checkout.run(*arguments)
        assert result.returncode == 0
        assert all(f"  {name} " in result.stdout for name in ("setup", "lab", "report", "test"))


def test_an_unknown_command_shows_the_usage_and_exits_2(checkout: Checkout) -> None:
    result = checkout.run("reprot")
    assert result.returncode == 2
    assert "usage:" in result.stderr
    assert "unknown command: reprot" in result.stderr


def test_an_old_python_gets_one_sentence(checkout: Checkout) -> None:
    pretend = "import sys; sys.version_info = (3, 9, 2); exec(sys.argv[1])"
    text = f"""#!/bin/sh\nexec "{sys.executable}" -c '{pretend}' "$2"\n"""
    old = checkout.script("old/python3", text)
    result = checkout.run("setup", PYTHON="python3", PATH=f"{old.parent}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert result.stderr.startswith(
        "workbook: python3 is Python 3.9.2, but the workbook needs 3.11 or newer;"
    )
    assert result.stderr.count("\n") == 1


def test_a_missing_python_gets_one_sentence(checkout: Checkout) -> None:
    result = checkout.run("setup", PYTHON="/no/such/python")
    assert result.returncode == 1
    assert result.stderr.startswith("workbook: /no/such/python was not found; install Python 3.11 or newer")
    assert result.stderr.count("\n") == 1


def test_a_python_without_venv_gets_one_sentence(checkout: Checkout) -> None:
    # Debian's python3 without python3-venv: `import ensurepip` fails.
    text = f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\nexec "{sys.executable}" "$@"\n'
    result = checkout.run("setup", PYTHON=str(checkout.script("no-venv", text)))
    assert result.returncode == 1
    assert "no-venv has no working venv module" in result.stderr
    assert result.stderr.count("\n") == 1


def test_setup_installs_once_and_then_has_nothing_to_do(checkout: Checkout) -> None:
    assert checkout.run("setup").returncode == 0
    assert checkout.installs() == ["requirements.txt", "."]

    start = time.perf_counter()
    again = checkout.run("setup")
    assert time.perf_counter() - start <= 2.0
    assert again.stdout == f"workbook: ready ({checkout.folder}/.venv)\n"
    assert checkout.installs() == []


@pytest.mark.parametrize("name", FILES)
def test_setup_runs_again_when_a_file_that_it_installs_from_changes(checkout: Checkout, name: str) -> None:
    checkout.run("setup")
    checkout.installs()
    with (checkout.folder / name).open("a") as file:
        file.write("# changed\n")
    assert checkout.run("setup").returncode == 0
    assert checkout.installs() == ["requirements.txt", "."]


def test_a_moved_checkout_gets_a_new_venv(checkout: Checkout) -> None:
    checkout.run("setup")
    checkout.installs()
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("elsewhere"))
    result = checkout.run("setup", PYTHON=str(checkout.folder / "fake-python"))
    assert "making .venv" in result.stdout
    assert checkout.installs() == ["requirements.txt", "."]


def test_a_failed_install_is_reported_and_tried_again(checkout: Checkout) -> None:
    failed = checkout.run("setup", PIP_STATUS="1")
    assert failed.returncode == 1
    assert "pip could not install requirements.txt" in failed.stderr
    checkout.installs()
    assert checkout.run("setup").returncode == 0
    assert checkout.installs() == ["requirements.txt", "."]


# The active environment. Distributions on PYTHONPATH stand before those of the Python that runs the tests.


def distribution(folder: Path, name: str, version: str, origin: str) -> str:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "direct_url.json").write_text(json.dumps({"url": origin, "dir_info": {"editable": True}}))
    return str(folder)


@pytest.fixture
def active(checkout: Checkout) -> dict[str, str]:
    """An active environment with this environment's packages, and this checkout's own package installed."""
    checkout.script("active/bin/python", FAKE_PYTHON)
    origin = checkout.folder.as_uri()  # percent-encoded, as pip writes it
    site = distribution(checkout.folder / "site", "ddtree_core", "0.1.0", origin)
    return {"VIRTUAL_ENV": str(checkout.folder / "active"), "PYTHONPATH": site}


def test_a_complete_active_environment_is_used(checkout: Checkout, active: dict[str, str]) -> None:
    start = time.perf_counter()
    result = checkout.run("setup", **active)
    assert time.perf_counter() - start <= 2.0
    assert result.stdout.splitlines() == [
        f"workbook: using the active environment ({active['VIRTUAL_ENV']})",
        f"workbook: ready ({active['VIRTUAL_ENV']})",
    ]
    assert not (checkout.folder / ".venv").exists()
    assert checkout.installs() == []


def test_an_active_conda_environment_is_used(checkout: Checkout, active: dict[str, str]) -> None:
    active["CONDA_PREFIX"] = active.pop("VIRTUAL_ENV")
    assert "using the active environment" in checkout.run("setup", **active).stdout


@pytest.mark.parametrize(("name", "version"), [("torch", "2.12.0+cpu"), ("transformers", "5.23.0")])
def test_an_active_environment_with_another_version_is_not_used(
    checkout: Checkout, active: dict[str, str], name: str, version: str
) -> None:
    distribution(checkout.folder / "site", name, version, "")
    result = checkout.run("setup", **active)
    wanted = f"{name}=={pins('requirements.txt')[name]}"
    assert f"({active['VIRTUAL_ENV']}) lacks {wanted}: using .venv instead" in result.stdout
    assert checkout.installs() == ["requirements.txt", "."]
    assert (checkout.folder / ".venv").exists()


def test_an_active_environment_of_another_checkout_is_left_alone(
    checkout: Checkout, active: dict[str, str]
) -> None:
    active["PYTHONPATH"] = distribution(
        checkout.folder / "other", "ddtree_core", "0.1.0", "file:///elsewhere"
    )
    result = checkout.run("setup", **active)
    assert "has ddtree-core from elsewhere (file:///elsewhere): using .venv instead" in result.stdout
    assert (checkout.folder / ".venv").exists()


# The commit hook

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


class Repository:
    def __init__(self, folder: Path):
        self.folder = folder
        shutil.copytree(ROOT / ".githooks", folder / ".githooks")
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        isolated = {"HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        identity = ["-c", "user.name=somebody", "-c", "user.email=somebody"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        return subprocess.run(
            ["git", *identity, *arguments],
            cwd=self.folder,
            env={**kept, **isolated, "PATH": path},
            capture_output=True,
            text=True,
        )


@needs_git
def test_setup_turns_the_hook_on_unless_the_clone_has_its_own(checkout: Checkout) -> None:
    repository = Repository(checkout.folder)
    repository.git("config", "core.hooksPath", "mine")
    checkout.run("setup")
    assert repository.git("config", "core.hooksPath").stdout == "mine\n"
    repository.git("config", "--unset", "core.hooksPath")
    own = checkout.script(".git/hooks/post-commit", "#!/bin/sh\n")
    checkout.run("setup")
    assert repository.git("config", "core.hooksPath").stdout == ""
    own.unlink()
    checkout.run("setup")
    assert repository.git("config", "core.hooksPath").stdout == ".githooks\n"


@needs_git
def test_the_hook_strips_staged_notebooks_and_refuses_bad_python(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.git("config", "core.hooksPath", ".githooks")
    output = {"output_type": "stream", "name": "stdout", "text": ["2\n"]}
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": ["print(2)"]}
    ran = {**cell, "execution_count": 7, "outputs": [output]}
    notebook = {"cells": [ran], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path = tmp_path / "a notebook.ipynb"
    path.write_text(json.dumps(notebook))
    repository.git("add", path.name)
    assert repository.git("commit", "-m", "a notebook").returncode == 0
    committed = json.loads(repository.git("show", f"HEAD:{path.name}").stdout)
    assert committed["cells"] == [{**cell, "execution_count": None, "outputs": []}]
    assert json.loads(path.read_text()) == notebook, "the working copy must keep its outputs"

    (tmp_path / "bad.py").write_text("import os\n")  # F401, in ruff's default rules too
    repository.git("add", "bad.py")
    refused = repository.git("commit", "-m", "bad")
    assert refused.returncode != 0
    assert "ruff check fails on bad.py" in refused.stderr
