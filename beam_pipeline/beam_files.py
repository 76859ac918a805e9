"""Passes Beam's flags about stores on to `imageshards.storage`, and reads Beam's file systems.

`imageshards.storage` knows nothing of Beam: `StoreConfig.settings` and `new_backend` are handed to
that package. Beam is imported only for a path that needs a file system of Beam's, such as `hdfs://`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, cast

import msgspec

from beam_pipeline import metrics
from beam_pipeline.option_texts import beam_flag
from imageshards import storage
from imageshards.errors import StorageError, names_flags, naming_flags
from imageshards.storage.base import Backend, Stat, file_version, replaced

# Flags of Beam (`S3Options`, `GoogleCloudOptions`) that change how clients of stores behave.
_STORE_FLAGS = (
    "s3_access_key_id", "s3_secret_access_key", "s3_session_token", "s3_endpoint_url",
    "s3_region_name", "s3_verify", "s3_disable_ssl", "no_auth", "impersonate_service_account",
)  # fmt: skip
_SWITCHES = ("s3_disable_ssl", "no_auth")
# Keeps the context of a worker that names flags in errors open until the process ends.
_naming = contextlib.ExitStack()


def given_flags(beam_args: Sequence[str]) -> dict[str, str]:
    """Returns the flags of a command line, without importing Beam; "" without a value."""
    # Beam's own parser would answer too, but its import takes seconds.
    found: dict[str, str] = {}
    name = ""
    for text in beam_args:
        if text.startswith("--"):
            name, _, found[name] = text[2:].partition("=")
        elif name and not found[name]:
            found[name] = text
    return found


class StoreConfig(msgspec.Struct, frozen=True):
    """Settings that each step of a pipeline carries to the process that runs the step.

    A build reads the settings from its command line, a transform from the pipeline's options.
    """

    flags: dict[str, Any] = {}  # Beam's flag → value
    names_flags: bool = False  # errors name flags, as in a command, instead of arguments

    def __post_init__(self) -> None:
        # A worker calls this when it unpickles a step, as Beam's worker pool passes no flag of ours
        # on. Naming lasts as long as the process: Beam formats an error after the step has ended.
        if self.names_flags and not names_flags():
            _naming.enter_context(naming_flags())

    @classmethod
    def of_arguments(cls, beam_args: Sequence[str]) -> StoreConfig:
        found = given_flags(beam_args).items()
        needs_value = {*_STORE_FLAGS}.difference(_SWITCHES)
        return cls({name: text or True for name, text in found if text or name not in needs_value})

    @classmethod
    def of_pipeline(cls, value: Any) -> StoreConfig:
        return cls(_given_options(value.pipeline.options), names_flags())

    def settings(self) -> dict[str, dict[str, Any]]:
        """Returns the argument of `storage.using`, with the settings that were given.

        Raises `StorageError` if --s3_verify is neither true, false nor the path of a file.
        """
        given = {flag: self.flags[flag] for flag in _STORE_FLAGS if self.flags.get(flag)}
        s3 = {flag[3:]: value for flag, value in given.items() if flag.startswith("s3_")}
        if s3.pop("disable_ssl", False):
            s3["use_ssl"] = False
        verify = s3.get("verify")
        if verify is not None and not os.path.exists(verify):
            if verify.lower() not in ("true", "false"):
                raise StorageError(
                    argument=beam_flag("s3_verify"),
                    received=repr(verify),
                    expected="true, false, or the path of a file of certificates to trust, on "
                    "every machine that reads or writes s3://",
                )
            s3["verify"] = verify.lower() == "true"
        gs = {flag: value for flag, value in given.items() if not flag.startswith("s3_")}
        return {"s3": s3, "gs": gs, "beam": self.flags}

    def step(self, function: Callable[..., Any], stage: str = "") -> Callable[..., Any]:
        """Returns a function that calls `function` with these settings of stores.

        Its time counts as time of a `stage`, if there is one.
        """

        @contextlib.contextmanager
        def running() -> Iterator[metrics.Clock]:
            clock = metrics.Clock()
            with storage.using(self.settings()):
                yield clock
            if stage:
                metrics.count(stage, msec=clock.msec)

        @functools.wraps(function)  # Beam reads type hints from the function that it is given
        def step(*args: Any) -> Any:
            with running() as clock, clock.running():
                return function(*args)

        # A generator runs while Beam reads its elements, so the settings must last until its end.
        @functools.wraps(function)
        def generate(*args: Any) -> Iterator[Any]:
            with running() as clock:
                yield from clock.over(function(*args))

        return generate if inspect.isgeneratorfunction(function) else step


@functools.lru_cache(maxsize=1)  # each transform of a pipeline asks for the same options
def _given_options(options: Any) -> dict[str, Any]:
    kinds = (str, int, float, bool, list, dict)  # an object might not be picklable
    found = options.get_all_options(drop_default=True)
    return {flag: value for flag, value in found.items() if isinstance(value, kinds)}


def new_backend(scheme: str) -> Backend | None:
    """Returns the backend for a scheme, or None if Beam has no file system for the scheme."""
    from apache_beam.io.filesystems import FileSystems

    # Beam keeps one set of options per process; a runner may have set them already.
    flags = storage.settings().get("beam")
    if flags and FileSystems._pipeline_options is None:
        from apache_beam.options.pipeline_options import PipelineOptions

        FileSystems.set_options(PipelineOptions.from_dictionary(flags))
    try:
        FileSystems.get_filesystem(f"{scheme}://")
    except Exception:  # noqa: BLE001  # each file system raises its own errors
        return None
    return BeamBackend()


class BeamBackend(Backend):
    """Read-only backend of `imageshards.storage` over `apache_beam.io.filesystems.FileSystems`.

    A build does not write there: Beam's file systems have no atomic or conditional write.
    """

    def __init__(self) -> None:
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        self._files: Any = FileSystems
        # Beam would otherwise decompress a `.gz` by its name.
        self._plain = {"compression_type": CompressionTypes.UNCOMPRESSED}

    def open_read(self, path: str, version: str = "") -> BinaryIO:
        if version and ((found := self.stat(path)) is None or found.version != version):
            raise replaced(path)
        with _as_os_error(path):
            return cast(BinaryIO, self._files.open(path, **self._plain))

    def stat(self, path: str) -> Stat | None:
        with _as_os_error(path):
            if not self._files.exists(path):
                return None
            files = self._files.get_filesystem(path)
        try:
            with _as_os_error(path):
                found = _stat(files.metadata(path))
        except OSError:  # deleted since, or a folder
            return None
        # Some file systems describe a folder as an empty file.
        is_folder = not found.size_bytes and self.is_folder(path)
        return None if is_folder else found

    def files_from(self, prefix: str) -> Iterator[Stat]:
        with _as_os_error(prefix):
            matched = self._files.match([prefix + "**"])[0].metadata_list
        # Stores mark folders by objects whose names end with a slash.
        found = [_stat(m) for m in matched if not m.path.endswith("/")]
        yield from sorted(found, key=lambda s: s.path)

    def check_bucket(self, path: str, flag: str, must_list: bool) -> None:
        if flag == "output":
            raise StorageError(
                argument="output",
                received=f"{path!r}, on a file system that is only read",
                expected="a path of this machine, gs:// or s3://",
            )


def _stat(found: Any) -> Stat:
    size_bytes, mtime_ns = found.size_in_bytes, int((found.last_updated_in_seconds or 0) * 1e9)
    return Stat(found.path, size_bytes, mtime_ns, file_version(size_bytes, mtime_ns))


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Turns an error of one of Beam's file systems, whatever its class, into an `OSError`."""
    try:
        yield
    except Exception as e:
        if isinstance(e, OSError) and e.errno:
            raise
        causes = getattr(e, "exception_details", None) or {}
        cause = next((c for c in causes.values() if isinstance(c, BaseException)), e)
        text = str(cause)
        # Beam's errors have no code, so their text must say whether the file is missing.
        is_missing = "404" in text or "not found" in text.lower() or "No such file" in text
        raise OSError(errno.ENOENT if is_missing else errno.EIO, text, path) from e
