"""Flags of a runner that matter and were not given: filled in, each with its reason."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from beam_pipeline import flink
from beam_pipeline.flag_values import runner_name
from beam_pipeline.runners import dataflow_defaults
from imageshards.errors import UserError

POOL_ADDRESS = "localhost:50000"

# A task writes this many shards or more, or tasks of one shard more leave the others idle.
SHARDS_PER_TASK = 4

_FLAGS = (
    "runner",
    "job_endpoint",
    "environment_type",
    "environment_config",
    "flink_master",
    "flink_version",
    "parallelism",
    "sdk_worker_parallelism",
    "max_bundle_size",
    "number_of_execution_retries",
)


class Filled(NamedTuple):
    """A flag that we set, and why."""

    flag: str
    value: str
    reason: str

    @property
    def argument(self) -> str:
        """As on a command line."""
        return f"--{self.flag}={self.value}"


def fill(beam_args: Sequence[str], num_shards: int | None = None) -> list[str]:
    """Beam's flags with ours added; each of ours is shown with its reason.

    Args:
        beam_args: Flags for Beam, as given.
        num_shards: Shards of all splits together, if that is known.

    Raises:
        UserError: A cluster has to be asked, and does not answer or has nothing free.
    """
    added = defaults(beam_args, num_shards)
    for each in added:
        print(f"{each.argument}: {each.reason}", file=sys.stderr)
    return [*beam_args, *(each.argument for each in added)]


def defaults(beam_args: Sequence[str], num_shards: int | None = None) -> list[Filled]:
    """The flags that `fill` adds."""
    given = _given(beam_args)
    name = runner_name(given["runner"])
    found: list[Filled] = []
    if name == "flink":
        found += _flink(given, num_shards)
    elif name == "portable" and given["job_endpoint"]:
        found += _pool("Beam's own default is Docker")
    elif name == "dataflow":
        found += [Filled(*each) for each in dataflow_defaults.defaults(beam_args)]
    return [each for each in found if given.get(each.flag) is None]


def _given(beam_args: Sequence[str]) -> dict[str, str | None]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in _FLAGS:
        # A flag without its value is found, and said, when Beam's flags are checked.
        parser.add_argument(f"--{flag}", nargs="?", const="")
    parser.add_argument("--environment_option", "--environment_options", dest="options", nargs="?")
    given = vars(parser.parse_known_args(list(beam_args))[0])
    own = given["environment_type"] not in (None, "EXTERNAL")
    if own or given.pop("options") is not None:
        # Another kind of environment, or one that is described otherwise.
        given["environment_type"] = given["environment_type"] or ""
        given["environment_config"] = given["environment_config"] or ""
    return given


def _pool(reason: str) -> Iterator[Filled]:
    yield Filled("environment_type", "EXTERNAL", f"workers come from a pool; {reason}")
    yield Filled(
        "environment_config",
        POOL_ADDRESS,
        "where a worker looks for the pool on its own host (make worker-pool)",
    )


def _flink(given: dict[str, str | None], num_shards: int | None) -> Iterator[Filled]:
    master = given["flink_master"] or "[auto]"
    cluster: flink.Overview | None = None
    if flink.is_address(master):
        cluster = _ask(master, may_be_unseen=bool(given["job_endpoint"]))
    if flink.is_address(master) or given["job_endpoint"]:
        yield from _pool("without this flag Flink's TaskManagers start Docker containers")
    if cluster is not None:
        yield Filled("flink_version", cluster.version, f"what runs at {master}")
        yield _parallelism(given, cluster, master, num_shards)
        yield Filled(
            "sdk_worker_parallelism",
            str(max(1, cluster.slots_of_one)),
            "one Python process for every task slot of a TaskManager; Beam's default is one for "
            "all of them",
        )
    yield Filled(
        "max_bundle_size",
        "1000",
        "fills the lists of references that are shuffled, and keeps what waits in a worker small",
    )
    yield Filled(
        "number_of_execution_retries",
        "0",
        "a failed job ends at once and the same command resumes from its finished shards; Flink "
        "would begin again with the same mistake",
    )


def _ask(master: str, may_be_unseen: bool) -> flink.Overview | None:
    try:
        return flink.overview(master)
    except UserError:
        # A job server may see a cluster that this host does not.
        if may_be_unseen:
            return None
        raise


def _parallelism(
    given: dict[str, str | None], cluster: flink.Overview, master: str, num_shards: int | None
) -> Filled:
    slots = cluster.free_slots
    if not slots and given["parallelism"] is None:
        have = f"{cluster.slots} task slots in {cluster.task_managers} TaskManagers"
        raise UserError(
            f"the Flink cluster at {master} has no free task slot ({have}); start a TaskManager, "
            "wait for or cancel the job that holds them, or give --parallelism if the cluster "
            "makes TaskManagers on demand."
        )
    if num_shards is not None and num_shards < slots:
        return Filled("parallelism", str(num_shards), f"the shards; {slots} task slots are free")
    reason = f"the free task slots of {cluster.task_managers} TaskManagers"
    if num_shards is not None and num_shards < SHARDS_PER_TASK * slots:
        reason += (
            f"; {num_shards} shards are few for them, {SHARDS_PER_TASK * slots} or more would "
            "keep all busy to the end"
        )
    return Filled("parallelism", str(slots), reason)
