"""Defaults for flags of a runner that were not given, each with its reason; needs no Beam."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

LOCAL_RUNNERS = ("direct", "fnapi")
POOL_ADDRESS = "localhost:50000"
# Imported by every worker of Dataflow before its first step.
WORKER_PLUGIN = "beam_pipeline.columns.tensorflow_settings"

# Flags that may be given several times: the default is added to them.
_LISTS = ("beam_plugins", "experiments")
# Masters that mean a cluster inside the job server's own process.
_EMBEDDED_FLINK = ("[local]", "[auto]", "[collection]")
# Where the Google Cloud SDK and Google's own libraries keep the project.
_PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")


class DefaultFlag(NamedTuple):
    """A flag that was filled in, and why."""

    flag: str
    value: str
    reason: str

    @property
    def argument(self) -> str:
        """As on a command line."""
        return f"--{self.flag}={self.value}"


def runner_name(text: str | None) -> str:
    """A --runner as Beam reads it, `portable` or `flink`: in any case, as a class or a word."""
    return (text or "DirectRunner").rpartition(".")[2].lower().removesuffix("runner")


def missing_defaults(given: Mapping[str, Any]) -> list[DefaultFlag]:
    """Returns the flags to add to a command line, of which `given` are Beam's options."""
    name = runner_name(given.get("runner"))
    found: Iterator[DefaultFlag] = iter(())
    if name == "flink":
        found = _flink(given)
    elif name == "portable" and "job_endpoint" in given:
        found = _pool(given, "Beam's own default is Docker")
    elif name == "dataflow":
        found = _dataflow(given)
    return [each for each in found if each.flag in _LISTS or each.flag not in given]


def _pool(given: Mapping[str, Any], reason: str) -> Iterator[DefaultFlag]:
    if given.get("environment_type", "EXTERNAL") != "EXTERNAL" or "environment_options" in given:
        return  # another kind of environment, or one that is described otherwise
    yield DefaultFlag("environment_type", "EXTERNAL", f"workers come from a pool; {reason}")
    yield DefaultFlag(
        "environment_config",
        POOL_ADDRESS,
        "where a worker looks for the pool on its own host (make worker-pool)",
    )


def _flink(given: Mapping[str, Any]) -> Iterator[DefaultFlag]:
    if "job_endpoint" in given or given.get("flink_master", "[auto]") not in _EMBEDDED_FLINK:
        yield from _pool(given, "without this flag Flink's TaskManagers start Docker containers")
    reason = "fills the lists that are shuffled, and keeps what waits in a worker small"
    yield DefaultFlag("max_bundle_size", "1000", reason)
    reason = "a failed job ends at once; Flink would begin again with the same mistake"
    yield DefaultFlag("number_of_execution_retries", "0", reason)


def _dataflow(given: Mapping[str, Any]) -> Iterator[DefaultFlag]:
    name = next((name for name in _PROJECT_VARIABLES if os.environ.get(name)), None)
    if name is not None:
        yield DefaultFlag("project", os.environ[name], f"the environment variable {name}")
    reason = "keeps TensorFlow, where columns need it, from importing Keras 3, too"
    yield DefaultFlag("beam_plugins", WORKER_PLUGIN, reason)
    checkout = checkout_setup()
    if checkout and not given.keys() & {"setup_file", "extra_packages"}:
        reason = "workers install the package that runs here, built from this checkout"
        yield DefaultFlag("setup_file", checkout, reason)
        if given.keys() & {"sdk_container_image", "worker_harness_container_image"}:
            reason = "workers build it with the image's own setuptools; pip would ask PyPI for one"
            yield DefaultFlag("experiments", "pip_no_build_isolation", reason)


def checkout_setup(package: pathlib.Path | None = None) -> str | None:
    """The setup.py of the checkout that a package, by default this one, is in; None without one."""
    folder = (package or pathlib.Path(__file__).parents[1]).resolve()
    setup = folder.parent / "setup.py"
    try:
        text = setup.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return str(setup) if re.search(r'name="imageshards"', text) else None
