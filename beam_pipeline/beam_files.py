"""What Beam's flags say about stores, and Beam's file systems (`hdfs://`, …) to read from.

`imageshards.storage`, which knows neither, is given `store_settings` and `new_backend`. Beam is
loaded only where a path needs one of its file systems.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

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

# Flags of the build that runs here, or of the process that started this one. Where there is no
# such build, those of Beam's pipeline act: in Beam's workers, and in pipelines of others.
_given: Mapping[str, Any] | None = None


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


@contextlib.contextmanager
def store_flags_of(beam_args: Sequence[str]) -> Iterator[None]:
    """Makes the flags about stores in a command line act while a build runs."""
    found = given_flags(beam_args, *_STORE_FLAGS)
    before = _given
    use_flags({flag: text or "true" for flag, text in found.items() if text or flag in _SWITCHES})
    try:
        yield
    finally:
        use_flags(before)


def use_flags(flags: Mapping[str, Any] | None) -> None:
    """Makes flags those of this process; None for those of Beam's pipeline."""
    global _given
    before = _store_flags()
    _given = flags
    if _store_flags() != before:
        storage.forget_clients()


def pipeline_flags() -> Mapping[str, Any]:
    """Beam's flags that were given, for a process that this one starts, which may have no Beam."""
    # Set by Beam's pipelines and workers; not worth importing Beam for.
    module = sys.modules.get("apache_beam.io.filesystems")
    options = getattr(getattr(module, "FileSystems", None), "_pipeline_options", None)
    flags = {} if options is None else _flags_of(options)
    if _given is None:
        return flags
    # Those about stores may be of a pipeline that was made here before this build.
    return {flag: flags[flag] for flag in flags if flag not in _STORE_FLAGS} | dict(_given)


@functools.lru_cache(maxsize=1)
def _flags_of(options: Any) -> dict[str, Any]:
    kinds = (str, int, float, bool, list, dict)
    found = options.get_all_options(drop_default=True)
    return {flag: value for flag, value in found.items() if isinstance(value, kinds)}


def _store_flags() -> dict[str, Any]:
    flags = pipeline_flags() if _given is None else _given
    return {flag: flags[flag] for flag in _STORE_FLAGS if flags.get(flag)}


def store_settings(scheme: str) -> dict[str, Any]:
    """What Beam's flags say about `gs` or `s3`: only what was given.

    Returns:
        s3: `access_key_id`, `secret_access_key`, `session_token`, `region_name`, `endpoint_url`,
        `verify` (a bool, or the path of certificates), `use_ssl`. gs: `no_auth`,
        `impersonate_service_account`.

    Raises:
        StorageError: --s3_verify is none of these.
    """
    given = _store_flags()
    if scheme != "s3":
        return {flag: value for flag, value in given.items() if not flag.startswith("s3_")}
    settings = {flag[3:]: value for flag, value in given.items() if flag.startswith("s3_")}
    if settings.pop("disable_ssl", False):
        settings["use_ssl"] = False
    verify = settings.get("verify")
    if verify is not None and not os.path.exists(verify):
        if verify.lower() not in ("true", "false"):
            raise StorageError(
                argument=beam_flag("s3_verify"),
                received=repr(verify),
                expected="true, false, or the path of a file of certificates to trust, on every "
                "machine that reads or writes s3://",
            )
        settings["verify"] = verify.lower() == "true"
    return settings


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

        if _given and FileSystems._pipeline_options is None:
            from apache_beam.options.pipeline_options import PipelineOptions

            FileSystems.set_options(PipelineOptions.from_dictionary(dict(_given)))
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
