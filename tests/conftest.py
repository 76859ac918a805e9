"""Fixtures every test may use: where the real pictures are, a server that says nothing."""

from __future__ import annotations

import os
import pathlib
import socket
from collections.abc import Iterator

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
DATA_VARIABLE = "IMAGESHARDS_TEST_DATA"

# Minutes each: begun last, one of them would run alone while other processes have nothing to do.
LONGEST_FILES = (
    "trainer/training/test_resume.py",
    "beam_pipeline/test_resume.py",
    "beam_pipeline/runners/test_portable.py",
    "trainer/test_main.py",
    "beam_pipeline/test_pipeline.py",
    "beam_pipeline/commit/test_store_output.py",
    "trainer/test_external_run.py",
    "trainer/models/test_model.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others as they are (`--no-loadscope-reorder` keeps that)."""
    places = {REPOSITORY / "tests" / name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def _real_images(folder: str) -> pathlib.Path:
    override = os.environ.get(DATA_VARIABLE)
    root = pathlib.Path(override) if override else REPOSITORY.parent / "shared" / "data"
    if not (root / folder).is_dir():
        pytest.skip(f"no real images: {root / folder} is absent; {DATA_VARIABLE} names their root")
    return root / folder


@pytest.fixture(scope="session")
def dogs_vs_cats() -> pathlib.Path:
    """1,399 JPEGs named `cat.N.jpg` and `dog.N.jpg`."""
    return _real_images("dogs_vs_cats")


@pytest.fixture(scope="session")
def imagenet_sample() -> pathlib.Path:
    """300 JPEGs named `<synset>_<name>.JPEG`, some with a quote in the name."""
    return _real_images("imagenet_sample")


@pytest.fixture(scope="session")
def exif_orientation() -> pathlib.Path:
    """18 JPEGs: the same two pictures under every EXIF orientation."""
    return _real_images("exif_orientation")


@pytest.fixture(scope="session")
def broken_jpegs() -> pathlib.Path:
    """111 files that try a JPEG decoder: truncated, garbled, empty, absurd sizes."""
    return _real_images("broken_jpegs")


@pytest.fixture
def silent() -> Iterator[str]:
    """host:port of a listener that never says anything."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"localhost:{listener.getsockname()[1]}"
