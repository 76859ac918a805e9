"""Finds the saved model of a command or function: the file in a run's folder, and its code."""

from __future__ import annotations

import argparse
import functools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from imageshards.errors import Arg, UserError
from imageshards.storage import place
from trainer.dataset.spec import ModelCard
from trainer.serving import model_file

if TYPE_CHECKING:
    import keras

# Flags that name a saved model, and the arguments that errors name in their place in Python.
ARGUMENTS = {"model_path": "model", "model": "code"}


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Adds `--model_path`, `--last`, `--model` and `--trust`."""
    parser.add_argument(
        "--model_path",
        required=True,
        type=functools.partial(place, "model_path"),
        metavar="PATH",
        help="output folder of imageshards train, whose best.keras is taken if there is one; or a "
        ".keras file in it",
    )
    parser.add_argument(
        "--last",
        action="store_true",
        help="takes model.keras from a folder, the model after the last step",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="as in training: code of your own that the model needs is imported",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="runs any code that the file names or contains: a module found from here, and "
        "lambdas; only for files whose origin you know",
    )


def model_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the flags of `add_model_flags`, except for the path, as keywords of `find_model`."""
    return {"last": args.last, "code": args.model, "trust": args.trust}


class SavedModel(NamedTuple):
    """A saved model, not loaded yet.

    Attributes:
        file: The `.keras` file.
        card: The facts about the model, which its file contains.
        code: `module:function` from the training, which loading may import; None for no code.
        trust: Whether loading may run code that the file names or contains.
    """

    file: str
    card: ModelCard
    code: str | None
    trust: bool

    def load(self) -> keras.Model:
        """Returns the model as it was saved. Call it inside the strategy's scope."""
        return model_file.load_model(self.file, self.code, self.trust)[0]

    def load_for_serving(self) -> keras.Model:
        """Returns a model that maps pictures 0..255 to logits or values; refuses all else."""
        model = self.load()
        if not self.card.compiled:
            return model
        # A model that its user compiled may give probabilities; `as_ours` turns them into logits.
        from trainer.serving.compiled import as_ours

        return as_ours(model, self.card, self.file)


def find_model(
    path: str | os.PathLike[str], last: bool = False, code: str | None = None, trust: bool = False
) -> SavedModel:
    """Finds the model in a run's folder, or in a file; refuses code that is not allowed."""
    path = place("model_path", path)
    if code is not None and ":" not in code:
        raise UserError(
            argument="model",
            received=repr(code),
            expected="module:function, as in training",
            remedy="leave " + Arg("model") + " out where the model needs no code of yours",
        )
    file = model_file.locate(path, last)
    card = model_file.read_card(file)
    model_file.check_code(file, card, code, trust)
    return SavedModel(file, card, code, trust)


def chosen(path: str, file: str, step: int) -> str:
    """Returns `FILE, step N`, and says if `--last` would take another file of the folder `path`."""
    other = ""
    if file != path and file.endswith(model_file.BEST_MODEL_FILE):
        other = " (lowest val_loss; --last takes the last step)"
    return f"{file}, step {step}{other}"
