"""The commands of `imageshards`: where each stands, and what it is for.

The programs are named here, and by `imageshards/__init__.py` for what people import. A command's
module has `main(argv)`, which returns an exit code, and `make_parser()`; it is imported when the
command is run, and `make_parser` loads neither Beam nor TensorFlow.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
from types import ModuleType
from typing import NamedTuple

import imageshards
from imageshards.errors import UserError


class Command(NamedTuple):
    """A command: the module that is its home, and what it is for, in a line."""

    module: str
    purpose: str


# By the groups of `imageshards --help`.
GROUPS = {
    "datasets": {
        "build": Command(
            "beam_pipeline.__main__", "turn images into a dataset of balanced TFRecord shards"
        ),
        "adopt": Command(
            "imageshards.adopt.command", "describe TFRecords that others wrote, to train on them"
        ),
        "verify": Command(
            "imageshards.verification.command", "read a dataset again, and name all that is wrong"
        ),
        "report": Command(
            "imageshards.reporting.command",
            "write a page with contact sheets, classes, shards, rejects",
        ),
        "duplicates": Command(
            "imageshards.deduplication.command", "find equal and nearly equal pictures"
        ),
    },
    "models": {
        "train": Command("trainer.__main__", "train an image classifier on a dataset"),
        "evaluate": Command("trainer.evaluate", "measure a trained model on one split, exactly"),
        "predict": Command("trainer.predict", "classify image files with a trained model"),
        "export": Command("trainer.export", "write a model for serving, a SavedModel"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def import_module(name: str) -> ModuleType:
    """Imports a module of one of the programs, which are installed beside this package.

    Raises:
        UserError: Python would import another package of the program's name, for example the
            user's own `trainer/` in the working directory.
    """
    package = name.partition(".")[0]
    ours = os.path.join(os.path.dirname(imageshards.__path__[0]), package)
    spec = importlib.util.find_spec(package)
    found = [*(spec.submodule_search_locations or [spec.origin or ""])] if spec else []
    if found and os.path.realpath(ours) not in map(os.path.realpath, found):
        raise UserError(
            f"Python finds another package {package!r}, {found[0]}, before the one that belongs to "
            f"imageshards, {ours}; rename yours, or start in another folder, without that one on "
            "PYTHONPATH."
        )
    return importlib.import_module(name)


def load_command(name: str) -> ModuleType:
    """Imports the module of a command; raises UserError as `import_module` does."""
    return import_module(COMMANDS[name].module)


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a command, with all its flags; Beam's own, which `build` passes on, aside."""
    parser: argparse.ArgumentParser = load_command(name).make_parser()
    return parser
