"""Flags of Dataflow that were not given and that we can know, each with its reason."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

# Imported by every worker before its first step.
WORKER_PLUGIN = "beam_pipeline.columns.tensorflow_settings"

# Where the Google Cloud SDK and Google's own libraries keep them.
_VARIABLES = {
    "project": ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"),
    "region": ("CLOUDSDK_COMPUTE_REGION",),
}
_FLAGS = (
    *_VARIABLES,
    "temp_location",
    "staging_location",
    "setup_file",
    "requirements_file",
    "sdk_container_image",
    "worker_harness_container_image",
)


def given_flags(beam_args: Sequence[str]) -> dict[str, str | None]:
    """The flags that decide what is filled in; None for one that was not given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in _FLAGS:
        # A flag without its value is found, and said, when Beam's flags are checked.
        parser.add_argument(f"--{flag}", nargs="?", const="")
    parser.add_argument("--extra_packages", "--extra_package")
    return vars(parser.parse_known_args(list(beam_args))[0])


def defaults(
    beam_args: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, str, str]]:
    """(flag, value, reason) of every flag to add.

    Args:
        beam_args: Flags for Beam, as given.
        environ: Where the Google Cloud SDK's settings may be.
    """
    given = given_flags(beam_args)
    for flag, names in _VARIABLES.items():
        name = next((name for name in names if environ.get(name)), None)
        if given[flag] is None and name is not None:
            yield flag, environ[name], f"the environment variable {name}"
    if given["temp_location"] and given["staging_location"] is None:
        reason = "the graph and the package wait there; every job has a folder of its own below it"
        yield "staging_location", given["temp_location"], reason
    reason = "keeps TensorFlow, where columns need it, from importing Keras 3 and matplotlib too"
    yield "beam_plugins", WORKER_PLUGIN, reason
    has_image = given["sdk_container_image"] or given["worker_harness_container_image"]
    checkout = checkout_setup()
    if checkout and given["setup_file"] is None and given["extra_packages"] is None:
        reason = "workers install the package that runs here, built from this checkout"
        if not has_image:
            reason += (
                "; without --sdk_container_image each also downloads TensorFlow before its first "
                "image (deploy/dataflow/README.md)"
            )
        yield "setup_file", checkout, reason
        if has_image:
            reason = "workers build it with the image's own setuptools; pip would ask PyPI for one"
            yield "experiments", "pip_no_build_isolation", reason


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
