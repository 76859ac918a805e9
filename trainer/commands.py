"""Runs the trainer's commands, and declares the flags that several of them share."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from imageshards.commands import command_line
from imageshards.commands.options import Option, add_options
from imageshards.errors import Arg, UserError
from imageshards.storage import place
from trainer.config import OptimizerConfig, ReadConfig, RunConfig, default_output
from trainer.serving import model_file
from trainer.strengths import LIGHT, Augment

EPILOG = (
    "metrics.jsonl gets one JSON object per epoch: epoch (from 1), step, loss, learning_rate, "
    "images_per_second, and wait_fraction (share of the time that the model waited for data). A "
    "class adds accuracy, several labels add binary_accuracy and auc_pr, regression adds mae and "
    "rmse. Validation adds val_loss, val_accuracy and so on. The loss of a regression has no unit; "
    "mae and rmse have the unit of the column. E epochs are floor(E * records / batch_size) steps: "
    "records that do not fill the last batch begin the next epoch. Validation counts every picture "
    "exactly once."
)
# Flags that name a saved model, and the arguments that errors name in their place in Python.
ARGUMENTS = {"model_path": "model", "model": "code"}


def run(
    program: str, body: Callable[[], int], stopped: str = "stopped", prints_result: bool = False
) -> int:
    """Runs `body` as `command_line.run` does, also if TensorFlow hides a Ctrl-C."""
    # The context wraps `body` alone: `command_line.run` expects the KeyboardInterrupt.
    return command_line.run(program, _keyboard_interrupts()(body), stopped, prints_result)


@contextmanager
def _keyboard_interrupts() -> Iterator[None]:
    pressed: list[int] = []

    def note(signum: int, frame: object) -> None:
        pressed.append(signum)
        raise KeyboardInterrupt

    # TensorFlow turns some KeyboardInterrupts into its own errors.
    with command_line.on_signals(note, signal.SIGINT):
        try:
            yield
        except Exception as e:
            if pressed:
                raise KeyboardInterrupt from e
            raise


def make_parser() -> command_line.Parser:
    """Returns the parser of `imageshards train`."""
    parser = command_line.Parser(
        prog="imageshards train",
        description="Trains an image model on a dataset of TFRecord shards.",
        epilog=EPILOG,
    )
    add_options(parser, ReadConfig, title="data")
    add_options(parser, Augment, title="augmentation", shows_defaults=False)
    add_options(parser, RunConfig, title="training")
    add_options(parser, OptimizerConfig, title="optimizer")
    return parser


def parse_config(argv: Sequence[str] | None) -> RunConfig:
    """Returns the configuration of a command line; refuses unknown flags and wrong values."""
    # argparse leaves out the flags that were not given: the dataclasses have the defaults.
    given = vars(make_parser().parse_args(argv))
    if "steps" in given and "epochs" in given:
        raise UserError(
            argument="steps",
            received=f"{given['steps']} together with " + Arg("epochs", given["epochs"]),
            expected="one of them, as each says how long to train",
        )
    data, *more = given["data"]
    if more:
        # Commands that read no dataset start without NumPy.
        from trainer.dataset.open import several_datasets

        raise several_datasets(given["data"])
    given["augment"] = Augment.of(given.get("augment", LIGHT), **_pick(given, Augment))
    return RunConfig(
        ReadConfig(data, **_pick(given, ReadConfig, {"data"})),
        given.get("output") or default_output(data),
        OptimizerConfig(**_pick(given, OptimizerConfig)),
        # --optimizer is a field of `OptimizerConfig`, which is the field of this name here.
        **_pick(given, RunConfig, {"output", "optimizer"}),
    )


def _pick(given: Mapping[str, Any], kind: type, without: Collection[str] = ()) -> dict[str, Any]:
    """Returns the values of `given` that are fields of the dataclass `kind`."""
    names = {field.name for field in dataclasses.fields(kind)} - set(without)
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if name in names
    }


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The options of commands that name a saved model."""

    # fmt: off
    model_path: Annotated[str, Option(
        "output folder of imageshards train, or a .keras file in such a folder. A folder means "
        "best.keras if the run has this file, else model.keras", place=place, metavar="PATH")]
    last: Annotated[bool, Option(
        "use model.keras of the folder, the model after the last step")] = False
    code: Annotated[str | None, Option(
        "imports your own code that the model needs, as in training",
        flag="model", metavar="MODULE:FUNCTION")] = None
    trust: Annotated[bool, Option(
        "runs any code that the model file names or contains, that is modules that Python finds "
        "and lambdas. Use this flag only for files whose origin you know")] = False
    # fmt: on


def chosen(path: str, file: str, step: int) -> str:
    """Returns `FILE, step N`, and says if `--last` would take another file of the folder `path`."""
    other = ""
    if file != path and file.endswith(model_file.BEST_MODEL_FILE):
        other = " (lowest val_loss; --last takes the last step)"
    return f"{file}, step {step}{other}"
