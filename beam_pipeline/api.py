"""Defines `ims.build`, the function by which Python programs build a dataset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from beam_pipeline import cli
from beam_pipeline.option_texts import invalid
from beam_pipeline.progress import BuildSummary
from imageshards.commands import command_line

Path = str | os.PathLike[str]

# Environment variables that tensorflow-transform and `tensorflow_settings` set, for extra columns.
_VARIABLES = {
    "CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL", "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_USE_LEGACY_KERAS",
}  # fmt: skip


def build(
    input: Path | Sequence[Path],
    output: Path,
    *,
    beam_args: Sequence[str] = (),
    **options: Any,
) -> BuildSummary:
    """Turns images into a dataset of balanced TFRecord shards, as `imageshards build` does.

    After a kill or Ctrl-C, the same call resumes the build and keeps the finished shards.

    Example:

        ims.build("photos/", "pets/", image_size=256, splits={"train": 0.8, "validation": 0.2})

    Args:
        input: Class folders, an image table, a finished dataset, …; or several of them.
        output: Folder of the dataset, on this machine or in a store.
        beam_args: Flags of Beam: `["--runner=FlinkRunner", "--flink_master=HOST:8081"]`.
        **options: Flags of `imageshards build`, which its `--help` explains, without the dashes.
            A value is the text that the flag takes, a number, a list, or a dict for pairs. A flag
            without a value takes True, and None means that the flag is not given.

    Returns:
        The summary of the build, with the manifest of the dataset.

    Raises:
        UserError: A keyword or value is wrong, or the sentence gives another remedy.
        KeyboardInterrupt: On Ctrl-C, and in the main thread on SIGTERM, after all processes ended.
    """
    try:
        if isinstance(beam_args, str):
            raise invalid("beam_args", repr(beam_args), "a list of texts")
        asked = cli.options_of({"input": input, "output": output, **options})
        command_line.check_installed("apache_beam")
        from beam_pipeline.run import run

        unset = _VARIABLES - os.environ.keys()
        # This process may train next. TensorFlow looks for GPUs once, so the settings for extra
        # columns would hide the GPUs for good. CUDA ends this list at the first missing device.
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(64))))
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        try:
            return run(asked, beam_args)
        finally:
            for name in unset:
                os.environ.pop(name, None)
    except Exception as e:
        known = command_line.as_user_error(e)
        if known is None:
            raise
        raise known from None
