"""Compares the hosts of a run, and lets only the chief write."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import imageshards
import trainer
from imageshards.commands.command_line import search_here
from imageshards.errors import Arg
from trainer.config import RunConfig
from trainer.dataset.open import pixels_home

if TYPE_CHECKING:
    import keras

# These flags may differ between hosts.
_OF_ONE_HOST = ("output", "cluster_port", "cluster_timeout", "threads", "cache_folder")


def described(config: RunConfig) -> dict[str, Any]:
    """Returns all that hosts must share before a host starts TensorFlow, by names for people.

    These are the flags, the versions, the code of this project, and the modules that flags name.
    """
    folders = (pathlib.Path(str(one.__file__)).parent for one in (imageshards, trainer))
    sources = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    flags = dataclasses.asdict(config)
    flags |= flags.pop("read") | flags.pop("optimizer")
    found = {
        "Python": platform.python_version(),
        "TensorFlow": importlib.metadata.version("tensorflow"),
        "Keras": importlib.metadata.version("keras"),
        "The trainer's code (SHA-256)": _code(*sources),
    }
    for flag in ("model", "callbacks"):
        module, colon, _ = (flags[flag] or "").partition(":")
        # A wrong name gives a better error later, when the module is loaded.
        with contextlib.suppress(ImportError, ValueError):
            if colon:
                search_here()
            spec = importlib.util.find_spec(module) if colon else None
            if spec is not None and spec.origin is not None:
                code = _code(pathlib.Path(spec.origin))
                found[f"The module of {Arg(flag, flags[flag])} (SHA-256)"] = code
    return found | {str(Arg(k)): v for k, v in flags.items() if k not in _OF_ONE_HOST}


def digest(model: keras.Model) -> str:
    """Returns a hash of a built model's variables: their names, shapes and types, in order."""
    variables = [(v.path, list(v.shape), str(v.dtype)) for v in model.variables]
    return hashlib.sha256(json.dumps(variables).encode()).hexdigest()[:16]


@contextmanager
def only_chief_writes(config: RunConfig, is_chief: bool) -> Iterator[RunConfig]:
    """Yields the configuration of this host; only the chief writes to the output and prints.

    All further hosts run the same code, so that sums meet, but write to a temporary folder.
    """
    if is_chief:
        yield config
        return
    read = config.read
    if read.cache != "none" and read.cache_folder is None:
        # The cache must survive the temporary folder, so that a restart finds the pictures.
        read = dataclasses.replace(read, cache_folder=pixels_home())
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        yield dataclasses.replace(config, output=folder, read=read)


def _code(*files: pathlib.Path) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]
