"""What a run does on several hosts: they are compared, and the chief alone writes."""

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
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import imageshards
import trainer
from imageshards import storage
from imageshards.commands.command_line import search_here
from imageshards.errors import Arg
from trainer.config import RunConfig
from trainer.dataset.open import pixels_home

if TYPE_CHECKING:
    import keras

# Flags that may differ between hosts.
_OF_ONE_HOST = ("output", "cluster_port", "cluster_timeout", "threads", "cache_folder")


def described(config: RunConfig) -> dict[str, Any]:
    """What all hosts must share before any of them starts TensorFlow, by the names to show.

    Flags, versions, and the code: of this project, and the modules that flags name.
    """
    flags = dataclasses.asdict(config)
    flags |= flags.pop("read") | flags.pop("optimizer")
    found = {
        "Python": platform.python_version(),
        "TensorFlow": importlib.metadata.version("tensorflow"),
        "Keras": importlib.metadata.version("keras"),
        "The trainer's code (SHA-256)": _code(*_sources(imageshards), *_sources(trainer)),
    }
    for flag in ("model", "callbacks"):
        module, colon, _ = (flags[flag] or "").partition(":")
        # What is wrong with a name is said where it is used.
        with contextlib.suppress(ImportError, ValueError):
            if colon:
                search_here(module)
            spec = importlib.util.find_spec(module) if colon else None
            if spec is not None and spec.origin is not None:
                code = _code(pathlib.Path(spec.origin))
                found[f"The module of {Arg(flag, flags[flag])} (SHA-256)"] = code
    return found | {str(Arg(k)): v for k, v in flags.items() if k not in _OF_ONE_HOST}


def digest(model: keras.Model) -> str:
    """Of a built model's variables: their names, shapes and types, in order."""
    variables = [(v.path, list(v.shape), str(v.dtype)) for v in model.variables]
    return hashlib.sha256(json.dumps(variables).encode()).hexdigest()[:16]


@contextmanager
def only_chief_writes(config: RunConfig, is_chief: bool) -> Iterator[RunConfig]:
    """The configuration of this host: others than the chief write to a folder that is thrown away.

    So all hosts run the same code, and their sums meet; others print errors only.
    """
    if is_chief:
        yield config
        return
    read = config.read
    if read.cache != "none" and read.cache_folder is None:
        # Not thrown away with the folder: a restart finds the pictures again.
        read = dataclasses.replace(read, cache_folder=pixels_home())
    with (
        storage.temporary_folder() as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        yield dataclasses.replace(config, output=folder, read=read)


def _sources(package: ModuleType) -> list[pathlib.Path]:
    return sorted(pathlib.Path(str(package.__file__)).parent.rglob("*.py"))


def _code(*files: pathlib.Path) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]
