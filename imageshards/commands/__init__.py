"""Lists the commands of `imageshards`, each with its module and its purpose.

The module of a command has `main(argv)`, which returns an exit code, and `make_parser()`, which
loads neither Beam nor TensorFlow.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
from types import ModuleType

import imageshards
from imageshards.errors import UserError

# The groups of `imageshards --help`: command → its module, imported when it runs, and its purpose.
GROUPS = {
    "datasets": {
        "build": (
            "beam_pipeline.__main__", "turn images into a dataset of balanced TFRecord shards",
        ),
        "adopt": (
            "imageshards.adoption.command",
            "add a manifest to TFRecords of other tools, to train on them",
        ),
        "verify": (
            "imageshards.verification.command", "check every file and record of a dataset",
        ),
        "report": (
            "imageshards.reporting.command",
            "draw a page with contact sheets, classes, shards and rejects",
        ),
        "duplicates": (
            "imageshards.deduplication.command",
            "find equal and nearly equal images in a dataset",
        ),
    },
    "models": {
        "train": ("trainer.__main__", "train an image model on a dataset"),
        "evaluate": ("trainer.evaluate", "measure a trained model on one split of a dataset"),
        "predict": ("trainer.predict", "predict the classes, labels or values of image files"),
        "export": ("trainer.export", "write a trained model as a SavedModel for serving"),
    },
}  # fmt: skip
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def import_module(name: str) -> ModuleType:
    """Imports a module of this package or of a program beside it.

    Raises:
        UserError: Python would import another package of this name, for example a folder `trainer/`
            in the working directory of the user.
    """
    package = name.partition(".")[0]
    ours = os.path.join(os.path.dirname(imageshards.__path__[0]), package)
    spec = importlib.util.find_spec(package)
    found = [*(spec.submodule_search_locations or [spec.origin or ""])] if spec else []
    # A namespace package has several locations, in the order of `sys.path`.
    if found and os.path.realpath(ours) not in map(os.path.realpath, found):
        raise UserError(
            f"Python finds another package {package!r}, {found[0]}, before {ours} of imageshards; "
            "rename yours, or start in another folder, with a PYTHONPATH that does not lead to it."
        )
    return importlib.import_module(name)


def load_command(name: str) -> ModuleType:
    """Imports the module of a command, and raises UserError like `import_module`."""
    return import_module(COMMANDS[name][0])


def parser_of(name: str) -> argparse.ArgumentParser:
    """Returns the parser of a command; it lacks Beam's own flags, which `build` passes on."""
    parser: argparse.ArgumentParser = load_command(name).make_parser()
    return parser
