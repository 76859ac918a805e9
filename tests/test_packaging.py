"""What is installed, shipped to workers and locked agrees with pyproject.toml."""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement

import imageshards
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.process

PYTHONS = ("3.11", "3.12", "3.13")

NOT_SHIPPED = ("tests", "scripts", "benchmarks", "docs", "recipes", "examples", "deploy")
PACKAGES = ("imageshards", "beam_pipeline", "trainer")


def _run(*argv: str, cwd: pathlib.Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of what an sdist is made from, away from this repository."""
    root = tmp_path_factory.mktemp("away") / "a checkout"
    ignored = shutil.ignore_patterns("__pycache__")
    for package in (*PACKAGES, *NOT_SHIPPED):
        shutil.copytree(REPOSITORY / package, root / package, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "Makefile"):
        shutil.copy(REPOSITORY / name, root)
    return root


@pytest.fixture
def extras() -> dict[str, list[str]]:
    """The requirements of each extra, and those of the package alone as ``""``."""
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"] | {"": project["dependencies"]}


def _locked(python: str) -> list[str]:
    """`name==version` of every package that this Python gets on Linux."""
    here = {"python_version": python, "python_full_version": f"{python}.0"}
    lines = (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    chosen = (pin for pin in pins if pin.marker is None or pin.marker.evaluate(here))
    return [f"{pin.name}{pin.specifier}" for pin in chosen]


@pytest.fixture(scope="module")
def sdist(checkout: pathlib.Path) -> pathlib.Path:
    """An sdist built as Beam builds it where `build` is missing."""
    done = _run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", "out", cwd=checkout)
    assert done.returncode == 0, done.stderr
    (archive,) = (checkout / "out").iterdir()
    return archive


def test_the_version_is_stated_once(sdist: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """setup.py reads it as text: it runs on its own, also where nothing is installed."""
    assert imageshards.__version__ not in (REPOSITORY / "setup.py").read_text("utf-8")
    shutil.unpack_archive(sdist, tmp_path)
    (root,) = tmp_path.iterdir()
    done = _run(sys.executable, "-I", str(root / "setup.py"), "--version", cwd=root)
    assert done.stdout.split() == [imageshards.__version__], done.stderr


def test_the_sdist_holds_all_packages_and_no_tests(sdist: pathlib.Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for package in PACKAGES:
        sources = (REPOSITORY / package).rglob("*.py")
        assert {str(path.relative_to(REPOSITORY)) for path in sources} <= names
    assert {"setup.py", "LICENSE", "README.md"} <= names
    graph = (REPOSITORY / "beam_pipeline/columns/label_graph").rglob("*.*")
    assert {path.relative_to(REPOSITORY).as_posix() for path in graph} <= names
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert not {name.partition("/")[0] for name in names} & {*NOT_SHIPPED, "Makefile"}


def test_only_one_extra_brings_both_beam_and_tensorflow(extras):
    names = {extra: {Requirement(each).name for each in asked} for extra, asked in extras.items()}
    heavy = {extra: names[extra] & {"apache-beam", "tensorflow"} for extra in names}
    assert heavy["trainer"] == {"tensorflow"} and heavy["pipeline"] == {"apache-beam"}
    assert not any(heavy[extra] for extra in ("", "gcp", "aws", "docs"))
    asked_on_dataflow = (REPOSITORY / "deploy/dataflow/requirements.txt").read_text().splitlines()
    assert asked_on_dataflow[1] in extras["columns"]
    (ours,) = (each for each in map(Requirement, extras["dev"]) if each.name == "imageshards")
    assert ours.extras == {*extras} - {"", "dev", "pipeline"}, "[dev] has all; columns has pipeline"
    assert {*extras["pipeline"]} < {*extras["columns"]}


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_one_version_of_each_package_that_is_admitted(extras, python):
    pins = [line.split("==") for line in _locked(python)]
    locked = dict(pins)
    assert len(locked) == len(pins) > 100
    for requirement in map(Requirement, sum(extras.values(), [])):
        if requirement.name == "imageshards":
            continue
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            assert locked[requirement.name] in requirement.specifier
