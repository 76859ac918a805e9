"""A trained model as one file: Keras's own `.keras` format, with a model card added."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from imageshards import storage
from imageshards.errors import Arg, Text, UserError
from imageshards.typed import convert
from trainer.dataset.spec import (
    ModelCard,
)
from trainer.output_errors import output_errors

if TYPE_CHECKING:
    import keras

# In the output folder of a run: the model after the last step, that of the lowest val_loss where
# it was another, and the tensorflow-transform graph of the dataset.
MODEL_FILE = "model.keras"
BEST_MODEL_FILE = "best.keras"
TRANSFORM_FOLDER = "transform_fn"
# The beginning of the name of a folder in which a model is made, beside its final place.
SAVING_PREFIX = ".saving-"
# Inside a model file.
CARD_FILE = "imageshards.json"
FORMAT_VERSION = 1

_METADATA_FILE = "metadata.json"
# The earliest time a zip file can hold, so that the same model gives the same bytes.
NO_TIME = (1980, 1, 1, 0, 0, 0)
_TRUST = Arg("trust", True) + " if you know where the file comes from"
_KERAS_ERRORS = (ValueError, TypeError, ImportError, AttributeError, LookupError, OSError)


def save_model(model: keras.Model, path: str, card: ModelCard) -> None:
    """Saves a Keras model and its card as a `.keras` file, whole or not at all.

    Without the optimizer, loss and metrics, which checkpoints hold, but of a user's compiled model.
    The bytes are a function of the model, the card and the versions of Keras and h5py, except for
    the `shared_object_id`s in `config.json`: Keras writes memory addresses there.

    Raises:
        UserError: The file cannot be written, for example to a full disk.
    """
    folder, name = storage.parent_of(path), storage.name_of(path)
    beside = folder if storage.is_local(path) else None
    with (
        output_errors(folder, name),
        tempfile.TemporaryDirectory(prefix=SAVING_PREFIX, dir=beside) as near,
    ):
        raw, ready = (os.path.join(near, i + name) for i in ("raw-", "ready-"))
        with contextlib.nullcontext() if card.compiled else _not_compiled(model):
            model.save(raw)
        _add_card(raw, ready, card)
        storage.move(ready, path)


def find_model(path: str) -> str:
    """As `locate`, but a file of this machine: one in a store is copied, once in a process."""
    path = locate(path)
    with _reading(path):
        return storage.local_copy(path)


def find_transform(path: str) -> str | None:
    """The tensorflow-transform graph beside the `.keras` file `path`, if any, on this machine."""
    with _reading(path):
        folder = storage.join(storage.parent_of(path), TRANSFORM_FOLDER)
        return storage.local_copy(folder) if storage.is_folder(folder) else None


def locate(path: str, last: bool = False) -> str:
    """The `.keras` file that `path`, a file or the folder of a run, means, where it is.

    Of a folder it is the model of the lowest val_loss, or that after the `last` step.

    Raises:
        UserError: There is none, or it cannot be read.
    """
    with _reading(path):
        storage.check_bucket(path, "model_path", must_list=False)
        is_run = storage.is_folder(path)
        best = storage.join(path, BEST_MODEL_FILE)
        if is_run and not last and storage.exists(best):
            return best
        file = storage.join(path, MODEL_FILE) if is_run else path
        found = storage.exists(file)
    if not found:
        what = f"a folder without {MODEL_FILE}" if is_run else "where there is no file"
        raise UserError(
            argument="model_path",
            received=f"{path!r}, {what}",
            expected="a .keras file that imageshards train wrote, or the output folder of a run",
        )
    if last and not is_run:
        raise UserError(
            argument="last",
            received="True together with " + Arg("model_path") + f" {path!r}, a file",
            expected="the output folder of a run",
            remedy="leave " + Arg("last") + " out",
        )
    return file


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise UserError(
            argument="model_path",
            received=f"{path!r}, which cannot be read ({e.strerror or e})",
            expected="a model that may be read, and room in the temporary folder where the model "
            "is in a store",
        ) from e


def read_card(path: str) -> ModelCard:
    """The card of the model that `locate` finds, without TensorFlow; refuses other files."""
    file = find_model(path)
    try:
        with zipfile.ZipFile(file) as members:
            text = members.read(CARD_FILE).decode()
    except KeyError as e:
        raise UserError(
            argument="model_path",
            received=f"{path!r}, in which there is no {CARD_FILE}",
            expected="a model that imageshards train wrote",
        ) from e
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as e:
        raise UserError(
            argument="model_path",
            received=f"{path!r}, which is not a complete .keras file ({e})",
            expected="a model that imageshards train wrote",
        ) from e
    try:
        return _card_from_json(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise UserError(
            argument="model_path",
            received=f"{path!r}, whose {CARD_FILE} cannot be understood ({e})",
            remedy="use the version of the trainer that wrote the file, or train again",
        ) from e


def check_code(path: str, card: ModelCard, code: str | None, trust: bool) -> None:
    """Refuses a model that only code which is not allowed can make: its module may be anybody's."""
    if card.compiled and not (code or trust):
        raise UserError(
            argument="model_path",
            received=f"{path!r}, a model compiled by {_function(card)!r}, a module that would be "
            "imported",
            remedy="give "
            + Arg("model", _function(card))
            + " if the module is your code, or "
            + _TRUST,
        )


def load_model(
    path: str, code: str | None = None, trust: bool = False
) -> tuple[keras.Model, ModelCard]:
    """Loads a model that `save_model` saved, and its card; only a user's own is compiled.

    No code is run but what is allowed, as the file may be a stranger's: `code` is the
    `module:function` of its training, `trust` runs the one it names and the lambdas that it holds.
    `path` may be the output folder of its run.

    Raises:
        UserError: There is no such file, it is broken, has no card, or needs a module that
            is not allowed or cannot be imported.
    """
    card = read_card(path)
    check_code(path, card, code, trust)
    named = _function(card)
    import keras

    if card.compiled:
        from trainer.serving.compiled import rebuild

        return rebuild(code or named, card, path, find_model(path)), card
    if code or (trust and named):
        from trainer.models.user_model import load_function

        load_function(code or named)  # its import registers its layers
    try:
        return keras.saving.load_model(find_model(path), compile=False, safe_mode=not trust), card
    except _KERAS_ERRORS as e:
        remedy: Text = (
            "let its own layers be classes decorated with "
            "@keras.saving.register_keras_serializable()"
        )
        if not (code or trust):
            own: Text = "give "
            if named:
                own = own + Arg("model", named) + " to import that module of yours, or "
            remedy = "no code of its own was run: " + (own + _TRUST) + "; and " + remedy
        raise UserError(
            argument="model_path",
            received=f"{path!r}, which Keras cannot load ({_reason(e)})",
            remedy=remedy,
        ) from e


def _function(card: ModelCard) -> str:
    """`module:function` that made the model; empty for one of ours."""
    name = str(card.training.get("model", ""))
    return name if ":" in name else ""


def _reason(error: BaseException) -> str:
    """What Keras says went wrong, without the configuration it quotes."""
    text = " ".join(str(error).split())
    # Errors of layers within layers are quoted one within the other.
    missing = re.search(r"Could not locate \w+ '[^']*'", text)
    return missing[0] if missing else text.rpartition("Exception encountered: ")[2][:300]


@contextmanager
def _not_compiled(model: keras.Model) -> Iterator[None]:
    """Keras saves the optimizer of a compiled model, twice the size of the weights."""
    optimizer, compiled = getattr(model, "optimizer", None), getattr(model, "compiled", False)
    if not compiled:
        yield
        return
    model.optimizer, model.compiled = None, False
    try:
        yield
    finally:
        model.optimizer, model.compiled = optimizer, compiled


def _add_card(source: str, target: str, card: ModelCard) -> None:
    """Copies a `.keras` file, adds the card and leaves out the time of saving."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            info = zipfile.ZipInfo(entry.filename, NO_TIME)
            if entry.filename == _METADATA_FILE:
                metadata = json.loads(old.read(entry))
                metadata.pop("date_saved", None)
                new.writestr(info, json.dumps(metadata))
                continue
            info.file_size = entry.file_size  # tells whether it needs 64-bit offsets
            with old.open(entry) as reader, new.open(info, "w") as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)
        text = json.dumps({"format_version": FORMAT_VERSION, **msgspec.to_builtins(card)}, indent=1)
        new.writestr(zipfile.ZipInfo(CARD_FILE, NO_TIME), text)


def _card_from_json(raw: Mapping[str, Any]) -> ModelCard:
    version = raw["format_version"]
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise ValueError(f"format_version is {version}; this trainer knows {FORMAT_VERSION}")
    return convert(raw, ModelCard)
