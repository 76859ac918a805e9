"""What Beam's flags say about stores, and Beam's file systems (`hdfs://`, …) to read from.

`imageshards.storage`, which knows neither, is given `StoreConfig.settings` and `new_backend`. Beam
is loaded only where a path needs one of its file systems.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, cast

import msgspec

from beam_pipeline.option_texts import beam_flag
from imageshards import storage
from imageshards.errors import StorageError
from imageshards.storage.base import Backend, Stat

# Beam's flags (`S3Options`, `GoogleCloudOptions`) that clients of stores obey.
_STORE_FLAGS = (
    "s3_access_key_id", "s3_secret_access_key", "s3_session_token", "s3_endpoint_url",
    "s3_region_name", "s3_verify", "s3_disable_ssl", "no_auth", "impersonate_service_account",
)  # fmt: skip
_SWITCHES = ("s3_disable_ssl", "no_auth")


def given_flags(beam_args: Sequence[str], *names: str) -> dict[str, str]:
    """Those of some of Beam's flags that a command line has, `--name=value` or `--name value`.

    Read without Beam, which takes seconds to import. One without its value is "", which is
    refused where all of Beam's flags are checked.
    """
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    for name in names:
        parser.add_argument(f"--{name}", nargs="?", const="")
    return vars(parser.parse_known_args(list(beam_args))[0])


class StoreConfig(msgspec.Struct, frozen=True):
    """What Beam's flags say about stores: a build has them from its command line, a transform from
    the options of its pipeline, and each of its steps carries them to its worker.

    Attributes:
        flags: Flags that were given, by their names.
    """

    flags: dict[str, Any] = {}

    @classmethod
    def of_arguments(cls, beam_args: Sequence[str]) -> StoreConfig:
        """The flags about stores in a command line."""
        found = given_flags(beam_args, *_STORE_FLAGS).items()
        return cls({flag: text or "true" for flag, text in found if text or flag in _SWITCHES})

    @classmethod
    def of_pipeline(cls, value: Any) -> StoreConfig:
        """The options that were given to the pipeline of a collection."""
        return cls(_given_options(value.pipeline.options))

    def settings(self) -> dict[str, dict[str, Any]]:
        """What `storage.using` takes: only what was given.

        Returns:
            s3: `access_key_id`, `secret_access_key`, `session_token`, `region_name`,
            `endpoint_url`, `verify` (a bool, or the path of certificates), `use_ssl`. gs:
            `no_auth`, `impersonate_service_account`. beam: all flags.

        Raises:
            StorageError: --s3_verify is none of these.
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

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function as a step of a pipeline, in which stores are used as flags say."""

        @functools.wraps(function)  # Beam reads the types
        def step(*args: Any) -> Any:
            with storage.using(self.settings()):
                return function(*args)

        @functools.wraps(function)
        def generate(*args: Any) -> Iterator[Any]:
            with storage.using(self.settings()):
                yield from function(*args)

        return generate if inspect.isgeneratorfunction(function) else step


@functools.lru_cache(maxsize=1)
def _given_options(options: Any) -> dict[str, Any]:
    kinds = (str, int, float, bool, list, dict)
    found = options.get_all_options(drop_default=True)
    return {flag: value for flag, value in found.items() if isinstance(value, kinds)}


def new_backend(scheme: str) -> Backend | None:
    """The backend for a scheme; None if Beam does not know it."""
    from apache_beam.io.filesystems import FileSystems

    try:
        FileSystems.get_filesystem(f"{scheme}://")
    except Exception:  # noqa: BLE001  # each file system has errors of its own
        return None
    return BeamBackend()


class BeamBackend(Backend):
    """`apache_beam.io.filesystems.FileSystems`, one client per process where Beam keeps one.

    They are only read: they write nothing at once or on a condition, and have no clock.
    """

    def __init__(self) -> None:
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        flags = storage.settings().get("beam")
        if flags and FileSystems._pipeline_options is None:
            from apache_beam.options.pipeline_options import PipelineOptions

            FileSystems.set_options(PipelineOptions.from_dictionary(flags))
        self._files: Any = FileSystems
        self._plain = {"compression_type": CompressionTypes.UNCOMPRESSED}

    def open_read(self, path: str) -> BinaryIO:
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
        except OSError:  # gone meanwhile, or a folder
            return None
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
    mtime_ns = int((found.last_updated_in_seconds or 0) * 1e9)
    return Stat(found.path, found.size_in_bytes, mtime_ns, "")


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Beam's errors, of many kinds, become `OSError`."""
    try:
        yield
    except Exception as e:
        if isinstance(e, OSError) and e.errno:
            raise
        causes = getattr(e, "exception_details", None) or {}
        cause = next((c for c in causes.values() if isinstance(c, BaseException)), e)
        text = str(cause)
        is_missing = "404" in text or "not found" in text.lower() or "No such file" in text
        raise OSError(errno.ENOENT if is_missing else errno.EIO, text, path) from e
