"""Returns defaults for the flags of a runner, each with its reason; needs no Beam."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

LOCAL_RUNNERS = ("direct", "fnapi")
POOL_ADDRESS = "localhost:50000"

# Flags that may be given several times: a default is added to the values that were given.
_LISTS = ("beam_plugins", "experiments")
# Values of --flink_master for a cluster inside the process of the job server.
_EMBEDDED_FLINK = ("[local]", "[auto]", "[collection]")


def runner_name(text: str | None) -> str:
    """Returns the short name of a `--runner`: `flink` for `FlinkRunner`, a class or a word."""
    return (text or "DirectRunner").rpartition(".")[2].lower().removesuffix("runner")


def missing_defaults(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns the arguments (`--flag=value`) to add to Beam's options `given` → their reasons."""
    return {
        f"--{flag}={value}": reason
        for flag, value, reason in _defaults(runner_name(given.get("runner")), given)
        if flag in _LISTS or flag not in given
    }


def _defaults(runner: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    is_served = (
        "job_endpoint" in given or given.get("flink_master", "[auto]") not in _EMBEDDED_FLINK
    )
    is_external = given.get("environment_type", "EXTERNAL") == "EXTERNAL"
    # An environment that --environment_option describes needs no address.
    is_pool = is_served and is_external and "environment_options" not in given
    if runner in ("flink", "portable") and is_pool:
        yield "environment_type", "EXTERNAL", "workers come from a pool, not from Docker"
        reason = "where a worker looks for the pool on its own host (make worker-pool)"
        yield "environment_config", POOL_ADDRESS, reason
    if runner == "flink":
        reason = "fills the lists that are shuffled, and keeps what waits in a worker small"
        yield "max_bundle_size", "1000", reason
        reason = "a failed job ends at once; Flink would begin again with the same mistake"
        yield "number_of_execution_retries", "0", reason
    elif runner == "dataflow":
        reason = "keeps TensorFlow, where columns need it, from importing Keras 3, too"
        yield "beam_plugins", "beam_pipeline.columns.tensorflow_settings", reason
        setup = checkout_setup()
        if setup and not given.keys() & {"setup_file", "extra_packages"}:
            reason = "workers install the package that runs here, built from this checkout"
            yield "setup_file", setup, reason
            if given.keys() & {"sdk_container_image", "worker_harness_container_image"}:
                reason = "workers build it with the image's setuptools; pip would ask PyPI for one"
                yield "experiments", "pip_no_build_isolation", reason


def checkout_setup() -> str | None:
    """Returns the path of setup.py if this package runs from a checkout, else None."""
    root = pathlib.Path(__file__).resolve().parents[2]
    is_checkout = (root / "deploy").is_dir() and (root / "setup.py").is_file()
    return str(root / "setup.py") if is_checkout else None
