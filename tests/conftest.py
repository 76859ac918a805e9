"""The fast part of the tests, and fixtures every test may use."""

from __future__ import annotations

import gc
import os
import pathlib
import socket
import sys
from collections.abc import Iterator

import hypothesis
import pytest

# How long an example takes depends on who runs beside it.
hypothesis.settings.register_profile(
    "imageshards", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("imageshards")

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
DATA_VARIABLE = "IMAGESHARDS_TEST_DATA"

# Half a minute of CPU time and more each: begun last, one of them would run alone while other
# processes have nothing to do.
LONGEST_FILES = (
    "trainer/training/test_several_hosts.py",
    "trainer/training/test_resume.py",
    "beam_pipeline/test_resume.py",
    "beam_pipeline/commit/test_store_output.py",
    "trainer/models/test_model.py",
    "trainer/test_main.py",
    "beam_pipeline/runners/test_portable.py",
    "trainer/training/test_fit.py",
    "trainer/training/test_output_on_stores.py",
    "trainer/test_on_stores.py",
    "trainer/models/test_strategy.py",
    "beam_pipeline/test_pipeline.py",
    "examples/test_examples.py",
)


NEEDS_TENSORFLOW = 'importorskip("tensorflow")'
# What a test of the fast part must not do: https://docs.python.org/3/library/audit_events.html
FORBIDDEN = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.bind")


# With TensorFlow and Beam in the process a full collection takes 0.3 s, and finds next to nothing.
gc.set_threshold(50_000, 20, 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help="only tests that need no server, no TensorFlow and no second process",
    )


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leaves out files that need TensorFlow, which takes seconds to import."""
    if config.getoption("--fast") and collection_path.name.startswith("test_"):
        return NEEDS_TENSORFLOW in collection_path.read_text("utf-8") or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, the others as they are (`--no-loadscope-reorder` keeps that)."""
    places = {REPOSITORY / "tests" / name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    if config.getoption("--fast"):
        heavy = [
            i for i in items if i.get_closest_marker("slow") or i.get_closest_marker("process")
        ]
        config.hook.pytest_deselected(items=heavy)
        items[:] = [item for item in items if item not in heavy]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """In the fast part a test that does what it must not fails, and says so."""
    _watch.active = item.config.getoption("--fast")
    try:
        return (yield)
    finally:
        _watch.active = False


class _Watch:
    """Raises where a fast test starts a process or a server, or imports TensorFlow."""

    active = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.active:
            return
        if event in FORBIDDEN or (event == "import" and arguments[0] == "tensorflow"):
            what = arguments[0] if event == "import" else event
            raise RuntimeError(f"{what} in a fast test: mark it with pytest.mark.process")


_watch = _Watch()
sys.addaudithook(_watch)


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


@pytest.fixture(scope="session")
def odd_jpegs() -> pathlib.Path:
    """Legal JPEGs that kill decoders: `lossless_grey.jpg`, for one."""
    return _real_images("odd_jpegs")


@pytest.fixture(autouse=True, scope="module")
def flags_of_beam_end_with_their_file() -> Iterator[None]:
    """Beam's file systems keep the flags of the last pipeline that was made in a process."""
    yield
    if filesystems := sys.modules.get("apache_beam.io.filesystems"):
        filesystems.FileSystems._pipeline_options = None


@pytest.fixture
def silent() -> Iterator[str]:
    """host:port of a listener that never says anything."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"localhost:{listener.getsockname()[1]}"
