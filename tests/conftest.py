"""The fast part of the tests, and fixtures every test may use."""

import gc
import importlib.util
import os
import pathlib
import random
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import hypothesis
import pytest

from tests.support import pictures

# How long an example takes depends on who runs beside it.
too_slow = [hypothesis.HealthCheck.too_slow]
# Each run draws others.
hypothesis.settings.register_profile(
    "imageshards", max_examples=50, deadline=None, suppress_health_check=too_slow
)
hypothesis.settings.load_profile("imageshards")

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
DATA_VARIABLE = "IMAGESHARDS_TEST_DATA"

# Why a test may be skipped where continuous integration runs (`--only_known_skips`).
KNOWN_SKIPS = (
    "no Flink: FLINK_MASTER names no JobManager",  # `make test-flink`
    "no right to mount a small file system",  # a container has none
    "only root can ",  # who is not root cannot become somebody else
    "the package (jax|nvidia|nvidia.dali|torch) is not installed",  # pages name them, no extra does
)

NEEDS_TENSORFLOW = re.compile(
    r'^(?:import|from) (?:keras|tensorflow)\b|importorskip\("tensorflow"\)', re.MULTILINE
)
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
# What a test of the fast part must not do: https://docs.python.org/3/library/audit_events.html
FORBIDDEN = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.bind")


# The tests with the marker `one_row` whose first row was collected.
_BEGUN = pytest.StashKey[set[str]]()

# Google's library asks about each bucket in a thread of its own, for traces that nobody takes here:
# a request at any time, where tests count them.
os.environ["DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"] = "true"

# With TensorFlow and Beam in the process a full collection takes 0.3 s, and finds next to nothing.
gc.set_threshold(50_000, 20, 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    of_fast = "only tests that need no server, no TensorFlow and no second process"
    parser.addoption("--fast", action="store_true", help=of_fast)
    parser.addoption("--random_files", metavar="SEED", help="files in a random order of this seed")
    of_skips = "a test that is skipped for no reason of KNOWN_SKIPS fails"
    parser.addoption("--only_known_skips", action="store_true", help=of_skips)


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leaves out files that need TensorFlow, which takes seconds to import or is not installed."""
    expects_all = HAS_TENSORFLOW or config.getoption("--only_known_skips")
    leaves_out = config.getoption("--fast") or not expects_all
    if leaves_out and collection_path.name.startswith("test_"):
        return NEEDS_TENSORFLOW.search(collection_path.read_text("utf-8")) is not None or None
    return None


def pytest_report_header() -> str:
    return "" if HAS_TENSORFLOW else "TensorFlow is not installed: tests that need it are left out"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Of a test with the marker `one_row`, all rows of parameters but the first are `long`."""
    if item.get_closest_marker("one_row") and not item.get_closest_marker("long"):
        begun = item.session.stash.setdefault(_BEGUN, set())
        name = item.nodeid.partition("[")[0]
        if name in begun:
            item.add_marker(pytest.mark.long)
        begun.add(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with many slow tests first: begun last, one of them would run alone.

    `--no-loadscope-reorder` keeps the order of files.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    first = {item.path: -slow[item.path] for item in items}
    if seed := config.getoption("--random_files"):
        shuffled = random.Random(seed).sample(list(first), len(first))
        first = {path: place for place, path in enumerate(shuffled)}
    items.sort(key=lambda item: first[item.path])
    asked = config.option.markexpr
    if config.getoption("--fast"):
        _leave_out(config, items, ("slow", "process"))
    elif "long" not in asked:
        _leave_out(config, items, ("long",))


def _leave_out(config: pytest.Config, items: list[pytest.Item], markers: tuple[str, ...]) -> None:
    out = [item for item in items if any(map(item.get_closest_marker, markers))]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def pytest_make_parametrize_id(val: object) -> str | None:
    """What tells cases apart by their values, where pytest would number them."""
    if isinstance(val, (str, int, float, complex, type(None))):
        return None  # pytest's own are as good
    if isinstance(val, (set, frozenset)):
        val = sorted(map(str, val))  # processes of xdist order sets differently
    words = str(getattr(val, "__name__", val))
    words = type(val).__name__ if " at 0x" in words else words
    return words if len(words) <= 60 else f"{words[:57]}..."


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A skip fails where only known ones are allowed."""
    return _without_unknown_skips(item.config, (yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """A whole file that is skipped is looked at, too."""
    return _without_unknown_skips(collector.config, (yield))


def _without_unknown_skips(config: pytest.Config, report: Any) -> Any:
    asked = config.getoption("--only_known_skips")
    if asked and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not any(re.search(known, reason) for known in KNOWN_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid}: no skip of tests/conftest.py: {reason}"
    return report


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


def _pictures(name: str, draw: Callable[[pathlib.Path], None], factory: Any) -> pathlib.Path:
    """A folder of drawn pictures, or the real ones below the folder that a person has named."""
    if root := os.environ.get(DATA_VARIABLE):
        return pathlib.Path(root, name)
    folder = factory.mktemp(name)
    draw(folder)
    return folder


@pytest.fixture(scope="session")
def dogs_vs_cats(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """JPEGs named `cat.N.jpg` and `dog.N.jpg`, of different sizes."""
    return _pictures("dogs_vs_cats", pictures.draw_photos, tmp_path_factory)


@pytest.fixture(scope="session")
def exif_orientation(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """18 JPEGs: the same two pictures under every EXIF orientation."""
    return _pictures("exif_orientation", pictures.draw_orientations, tmp_path_factory)


@pytest.fixture(scope="session")
def broken_jpegs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """About a hundred files that try a JPEG decoder: truncated, garbled, empty, absurd sizes."""
    return _pictures("broken_jpegs", pictures.draw_broken, tmp_path_factory)


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
