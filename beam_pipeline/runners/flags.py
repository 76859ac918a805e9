"""Defaults for flags of a runner that were not given, each with its reason.

Reads flags as text, so that it can be used before Beam is imported.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from beam_pipeline.runners.flink_rest import NoFlinkError, Overview, is_address, overview
from imageshards.errors import UserError

LOCAL_RUNNERS = ("direct", "fnapi")
POOL_ADDRESS = "localhost:50000"
# With fewer shards for each task, those that get one more leave the others idle at the end.
SHARDS_PER_TASK = 4
# Imported by every worker of Dataflow before its first step.
WORKER_PLUGIN = "beam_pipeline.columns.tensorflow_settings"

# Flags that may be given several times: the default is added to them.
_LISTS = ("beam_plugins", "experiments")
# Where the Google Cloud SDK and Google's own libraries keep them.
_VARIABLES = {
    "project": ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"),
    "region": ("CLOUDSDK_COMPUTE_REGION",),
}


class DefaultFlag(NamedTuple):
    """A flag that was filled in, and why."""

    flag: str
    value: str
    reason: str

    @property
    def argument(self) -> str:
        """As on a command line."""
        return f"--{self.flag}={self.value}"


class GivenFlags:
    """The flags of a command line; `given["runner"]` is None if it has none of that name.

    A flag without its value is "": that is refused when Beam's flags are checked.
    """

    def __init__(self, beam_args: Sequence[str]):
        self._args = list(beam_args)

    def __getitem__(self, flag: str) -> str | None:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument(f"--{flag}", dest="value", nargs="?", const="")
        value: str | None = parser.parse_known_args(self._args)[0].value
        return value


def runner_name(text: str | None) -> str:
    """A --runner as Beam reads it, `portable` or `flink`: in any case, as a class or a word."""
    return (text or "DirectRunner").rpartition(".")[2].lower().removesuffix("runner")


def fill_defaults(beam_args: Sequence[str], num_shards: int | None = None) -> list[str]:
    """Beam's flags with the defaults of missing ones, which are printed with their reasons.

    Args:
        beam_args: Flags for Beam, as given.
        num_shards: Shards of all splits together, if that is known.

    Raises:
        UserError: A cluster has to be asked, and does not answer or has nothing free.
    """
    added = missing_defaults(beam_args, num_shards)
    for each in added:
        print(f"{each.argument}: {each.reason}", file=sys.stderr)
    return [*beam_args, *(each.argument for each in added)]


def missing_defaults(
    beam_args: Sequence[str],
    num_shards: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[DefaultFlag]:
    """What `fill_defaults` adds; `environ` may have the Google Cloud SDK's settings."""
    given = GivenFlags(beam_args)
    name = runner_name(given["runner"])
    found: Iterator[DefaultFlag] = iter(())
    if name == "flink":
        found = _flink(given, num_shards)
    elif name == "portable" and given["job_endpoint"]:
        found = _pool(given, "Beam's own default is Docker")
    elif name == "dataflow":
        found = _dataflow(given, environ)
    return [each for each in found if each.flag in _LISTS or given[each.flag] is None]


def _pool(given: GivenFlags, reason: str) -> Iterator[DefaultFlag]:
    described = given["environment_option"] or given["environment_options"]
    if given["environment_type"] not in (None, "EXTERNAL") or described:
        return  # another kind of environment, or one that is described otherwise
    yield DefaultFlag("environment_type", "EXTERNAL", f"workers come from a pool; {reason}")
    yield DefaultFlag(
        "environment_config",
        POOL_ADDRESS,
        "where a worker looks for the pool on its own host (make worker-pool)",
    )


def _flink(given: GivenFlags, num_shards: int | None) -> Iterator[DefaultFlag]:
    master = given["flink_master"] or "[auto]"
    cluster: Overview | None = None
    if is_address(master):
        try:
            cluster = overview(master)
        except NoFlinkError:
            # A job server may see a cluster that this host does not.
            if not given["job_endpoint"]:
                raise
    if is_address(master) or given["job_endpoint"]:
        yield from _pool(given, "without this flag Flink's TaskManagers start Docker containers")
    if cluster is not None:
        yield DefaultFlag("flink_version", cluster.version, f"what runs at {master}")
        yield _parallelism(given, cluster, master, num_shards)
        reason = (
            "one Python process for every task slot of a TaskManager; Beam's default is one for "
            "all of them"
        )
        yield DefaultFlag("sdk_worker_parallelism", str(max(1, cluster.slots_of_one)), reason)
    reason = (
        "fills the lists of references that are shuffled, and keeps what waits in a worker small"
    )
    yield DefaultFlag("max_bundle_size", "1000", reason)
    reason = (
        "a failed job ends at once and the same command resumes from its finished shards; Flink "
        "would begin again with the same mistake"
    )
    yield DefaultFlag("number_of_execution_retries", "0", reason)


def _parallelism(
    given: GivenFlags, cluster: Overview, master: str, num_shards: int | None
) -> DefaultFlag:
    slots = cluster.free_slots
    if not slots and given["parallelism"] is None:
        have = f"{cluster.slots} task slots in {cluster.task_managers} TaskManagers"
        raise UserError(
            f"the Flink cluster at {master} has no free task slot ({have}); start a TaskManager, "
            "wait for or cancel the job that holds them, or give --parallelism if the cluster "
            "makes TaskManagers on demand."
        )
    if num_shards is not None and num_shards < slots:
        return DefaultFlag(
            "parallelism", str(num_shards), f"the shards; {slots} task slots are free"
        )
    reason = f"the free task slots of {cluster.task_managers} TaskManagers"
    if num_shards is not None and num_shards < SHARDS_PER_TASK * slots:
        reason += (
            f"; {num_shards} shards are few for them, {SHARDS_PER_TASK * slots} or more would "
            "keep all busy to the end"
        )
    return DefaultFlag("parallelism", str(slots), reason)


def _dataflow(given: GivenFlags, environ: Mapping[str, str]) -> Iterator[DefaultFlag]:
    for flag, names in _VARIABLES.items():
        name = next((name for name in names if environ.get(name)), None)
        if name is not None:
            yield DefaultFlag(flag, environ[name], f"the environment variable {name}")
    if temp := given["temp_location"]:
        reason = "the graph and the package wait there; every job has a folder of its own below it"
        yield DefaultFlag("staging_location", temp, reason)
    reason = "keeps TensorFlow, where columns need it, from importing Keras 3, too"
    yield DefaultFlag("beam_plugins", WORKER_PLUGIN, reason)
    has_image = given["sdk_container_image"] or given["worker_harness_container_image"]
    checkout = checkout_setup()
    packages = ("setup_file", "extra_packages", "extra_package")
    if checkout and not any(given[flag] is not None for flag in packages):
        reason = "workers install the package that runs here, built from this checkout"
        yield DefaultFlag("setup_file", checkout, reason)
        if has_image:
            reason = "workers build it with the image's own setuptools; pip would ask PyPI for one"
            yield DefaultFlag("experiments", "pip_no_build_isolation", reason)


def checkout_setup(package: pathlib.Path | None = None) -> str | None:
    """The setup.py of the checkout that this package runs from; None if it was installed.

    Args:
        package: Folder of the package; its own by default.
    """
    folder = (package or pathlib.Path(__file__).parents[1]).resolve()
    setup = folder.parent / "setup.py"
    try:
        text = setup.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return str(setup) if re.search(r'name="imageshards"', text) else None
