"""Trains an image classifier from balanced TFRecord shards: `python -m trainer`."""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from trainer.config import TrainConfig, default_output, parse_image_size
from trainer.errors import UserError
from trainer.inputs import open_inputs
from trainer.outputs import prepare_output

_FLAGS: dict[str, dict[str, Any]] = {
    "--data": {
        "required": True,
        "metavar": "DIR",
        "help": "data set to train on: a folder with manifest.json, as python -m beam_pipeline "
        "writes it",
    },
    "--model": {
        "default": "cnn",
        "metavar": "NAME",
        "help": "cnn (four convolutions), or any architecture of keras.applications, "
        "untrained, for example MobileNetV2 (default: cnn)",
    },
    "--epochs": {
        "type": int,
        "default": 5,
        "metavar": "N",
        "help": "passes over the training split (default: 5)",
    },
    "--batch_size": {
        "type": int,
        "default": 32,
        "metavar": "N",
        "help": "global batch: images per step, over all replicas together (default: 32)",
    },
    "--learning_rate": {
        "type": float,
        "default": 1e-3,
        "metavar": "X",
        "help": "of Adam, constant (default: 0.001)",
    },
    "--replicas": {
        "type": int,
        "metavar": "N",
        "help": "devices that share each batch: GPUs, or logical CPU devices where there are "
        "none (default: all GPUs, else 1)",
    },
    "--seed": {
        "type": int,
        "default": 0,
        "metavar": "N",
        "help": "of the initial weights and of the order of the records, 0 to 2^31-1 (default: 0)",
    },
    "--image_size": {
        "metavar": "PX",
        "help": "side of the pictures the model sees, in pixels, or HEIGHTxWIDTH; pictures of "
        "another size are cropped to its aspect around their centre and resized, sides and "
        "values rounded to the nearest integer (default: the data set's own size)",
    },
    "--train_split": {
        "metavar": "NAME",
        "help": "split to train on (default: train or training)",
    },
    "--validation_split": {
        "metavar": "NAME",
        "help": "split to validate on after every epoch, or none (default: validation, val, "
        "valid or test, where there is one)",
    },
    "--output": {
        "metavar": "DIR",
        "help": "local folder for model.keras and metrics.jsonl; those of an earlier run are "
        "replaced (default: DATA-model; trained for remote data)",
    },
}

_EPILOG = (
    "metrics.jsonl gets one object per epoch: epoch (from 1), loss, accuracy, val_loss, "
    "val_accuracy, images_per_second. An epoch is as many full batches as fit into one pass; the "
    "records left over open the next epoch. Validation counts every picture exactly once."
)


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[:1].upper()}{message[1:].rstrip('.')}; see --help.")


def make_parser() -> argparse.ArgumentParser:
    """The flags of `python -m trainer`."""
    parser = _Parser(
        prog="python -m trainer", description=__doc__, allow_abbrev=False, epilog=_EPILOG
    )
    for flag, options in _FLAGS.items():
        parser.add_argument(flag, **options)
    return parser


def parse_config(argv: Sequence[str] | None) -> TrainConfig:
    """Command line → configuration.

    Raises:
        UserError: A flag is unknown, or has a value it does not take.
    """
    known, unknown = make_parser().parse_known_args(argv)
    if unknown:
        near = difflib.get_close_matches(unknown[0].split("=")[0], _FLAGS, n=1)
        hint = f"did you mean {near[0]}? All are in --help" if near else "see --help"
        raise UserError(f"Received {unknown[0]!r}, which is no flag of the trainer; {hint}.")
    values: dict[str, Any] = vars(known)
    if values["image_size"] is not None:
        values["image_size"] = parse_image_size(values["image_size"])
    values["output"] = values["output"] or default_output(values["data"])
    return TrainConfig(**values)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the trainer.

    Args:
        argv: Command line without the program's name; None for `sys.argv`.

    Returns:
        0, or 2 for a user's mistake, or 130 after Ctrl-C.
    """
    try:
        config = parse_config(argv)
        # Mistakes are told before the seconds it takes to import TensorFlow.
        inputs = open_inputs(config)
        prepare_output(config.output)
        with _ctrl_c_is_ctrl_c():
            with _quiet_import():
                from trainer.train import train
            train(config, inputs)
    except UserError as e:
        print(f"python -m trainer: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("python -m trainer: stopped; the epochs that were finished are in metrics.jsonl.",
              file=sys.stderr)  # fmt: skip
        return 130
    return 0


@contextmanager
def _ctrl_c_is_ctrl_c() -> Iterator[None]:
    """Makes every Ctrl-C a KeyboardInterrupt: TensorFlow's C++ turns some into other errors."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []

    def note(signum: int, frame: object) -> None:
        pressed.append(signum)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as e:
        if pressed:
            raise KeyboardInterrupt from e
        raise
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _quiet_import() -> Iterator[None]:
    """Keeps TensorFlow's start-up log off the terminal, unless it was asked for.

    Its first lines are written before any log level is read, so the file descriptor itself
    is turned aside; if the import fails, they are shown after all.
    """
    # Set by whoever ran tensorflow-transform in this shell; the trainer is Keras 3.
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if level != "3" or "tensorflow" in sys.modules:
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        except Exception:
            aside.seek(0)
            os.write(terminal, aside.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


if __name__ == "__main__":
    sys.exit(main())
