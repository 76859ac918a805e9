"""The saved model that a command is given: which file of a run, and whose code it may run."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from imageshards.errors import UserError
from imageshards.storage import place
from trainer.dataset.spec import ModelCard
from trainer.serving import model_file


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Adds `--model_path`, `--last`, `--model` and `--trust`."""
    parser.add_argument(
        "--model_path",
        required=True,
        type=functools.partial(place, "--model_path"),
        metavar="PATH",
        help="output folder of imageshards train, of which best.keras is taken where there is "
        "one; or a .keras file of it",
    )
    parser.add_argument(
        "--last",
        action="store_true",
        help="of a folder, takes model.keras, as it was after the last step",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="as in training: code of your own that the model needs is imported",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="runs whatever code the file names or holds: a module found from here, and lambdas; "
        "only for files whose origin you know",
    )


def find_model(args: argparse.Namespace) -> tuple[str, ModelCard]:
    """The file that the flags mean, and its card; refuses one that needs code they do not allow."""
    if args.model is not None and ":" not in args.model:
        raise UserError(
            f"--model received {args.model!r}; expected module:function, as in training: other "
            "models need no code of yours, so leave it out."
        )
    file = model_file.locate(args.model_path, args.last)
    card = model_file.read_card(file)
    model_file.check_code(file, card, args.model, args.trust)
    return file, card


def chosen(args: argparse.Namespace, file: str, card: ModelCard) -> str:
    """`FILE, step N`, and what else could have been taken from a run's folder."""
    other = ""
    if file != args.model_path and file.endswith(model_file.BEST_MODEL_FILE):
        other = " (lowest val_loss; --last takes the last step)"
    return f"{file}, step {card.step}{other}"


def load_for_serving(file: str, args: argparse.Namespace) -> Any:
    """The model of a file: pictures 0..255 in, logits or values out; refuses any other."""
    model, card = model_file.load_model(file, args.model, args.trust)
    if not card.compiled:
        return model
    from trainer.serving.compiled import as_ours

    return as_ours(model, card, file)
