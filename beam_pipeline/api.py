"""What people import to build a dataset: `ims.build`, and what it gives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from beam_pipeline import cli
from beam_pipeline.progress import BuildSummary
from imageshards.commands import command_line
from imageshards.errors import UserError

Path = str | os.PathLike[str]

# What tensorflow-transform and its settings leave in the environment, where columns need it.
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

    Call it again after a kill or Ctrl-C: finished shards are not made again.

    Example:

        ims.build("photos/", "pets/", image_size=256, splits={"train": 0.8, "validation": 0.2})

    Args:
        input: Class folders, an image table, a finished dataset, …; or several of them.
        output: Folder of the dataset, here or in a store.
        beam_args: Beam's own flags: `["--runner=FlinkRunner", "--flink_master=HOST:8081"]`.
        **options: Named as the flags of `imageshards build`, which its `--help` explains, without
            the dashes. A value is the text that the flag takes, or what it stands for: a number, a
            dict for pairs, a list; True for a flag without a value, None for one that is not given.

    Raises:
        UserError: A keyword or value is wrong, or something else that its sentence says how to fix.
        KeyboardInterrupt: On Ctrl-C, and in the main thread on SIGTERM, when all processes ended.
    """
    try:
        if isinstance(beam_args, str):
            raise UserError(
                argument="beam_args", received=repr(beam_args), expected="a list of texts"
            )
        asked = cli.options_of({"input": input, "output": output, **options})
        command_line.check_installed("apache_beam")
        from beam_pipeline.run import run

        unset = _VARIABLES - os.environ.keys()
        # This process may train next, and TensorFlow looks for GPUs once: those settings would hide
        # them for good. These are all: CUDA ends the list at the first that is not there.
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
