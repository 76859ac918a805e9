"""Saves and loads a trained model as one file: Keras's `.keras` format with a model card."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from imageshards import storage
from imageshards.commands.output_folder import output_errors
from imageshards.errors import Arg, UserError
from imageshards.typed import convert
from trainer.dataset.spec import CARD_FILE, ModelCard

if TYPE_CHECKING:
    import keras

    from trainer.reader.described import DescribedSplit

# Names in the output folder of a run: the model after the last step, the model with the lowest
# val_loss if it is a different one, and the tensorflow-transform graph of the dataset.
MODEL_FILE = "model.keras"
BEST_MODEL_FILE = "best.keras"
TRANSFORM_FOLDER = "transform_fn"
# Prefix of the temporary folder, beside the model file, in which the file is written.
SAVING_PREFIX = ".saving-"
FORMAT_VERSION = 1

_METADATA_FILE = "metadata.json"
# The earliest time in a zip file, used for all members so that equal models give equal bytes.
NO_TIME = (1980, 1, 1, 0, 0, 0)
_OURS = "a model that imageshards train wrote"
_TRUST = Arg("trust", True) + " if you know where the file comes from"
_KERAS_ERRORS = (ValueError, TypeError, ImportError, AttributeError, LookupError, OSError)


def card_of(data: DescribedSplit, **known: Any) -> ModelCard:
    """Returns the card of a model that was trained with `data`; `known` are its other fields."""
    dataset = data.subset.dataset
    return ModelCard(
        data.classes,
        data.model_inputs,
        dataset.image_feature,
        dataset.label_feature,
        dataset.fingerprint,
        target=dataset.target,
        target_shape=dataset.target_shape,
        column=dataset.column,
        **known,
    )


def save_model(model: keras.Model, path: str, card: ModelCard) -> None:
    """Saves a Keras model and its card as a `.keras` file, which appears whole or not at all.

    The optimizer, loss and metrics are saved only for a model that the user compiled; checkpoints
    hold them in any case. The bytes depend only on the model, the card and the versions of Keras
    and h5py, except for the `shared_object_id`s in `config.json`, which are memory addresses.

    Raises:
        UserError: The file cannot be written, for example to a full disk.
    """
    folder, name = storage.parent_of(path), storage.name_of(path)
    # A rename needs the same file system; a model for a store is made in the temporary folder.
    beside = folder if storage.is_local(path) else None
    with (
        output_errors(folder, name),
        tempfile.TemporaryDirectory(prefix=SAVING_PREFIX, dir=beside) as near,
    ):
        raw, ready = (os.path.join(near, i + name) for i in ("raw-", "ready-"))
        with contextlib.nullcontext() if card.compiled else not_compiled(model):
            model.save(raw)
        _add_card(raw, ready, card)
        storage.move(ready, path)


def find_transform(path: str) -> str | None:
    """Returns a local path of the tensorflow-transform graph beside a `.keras` file, if any."""
    with _reading(path):
        folder = storage.join(storage.parent_of(path), TRANSFORM_FOLDER)
        return storage.local_copy(folder) if storage.is_folder(folder) else None


def locate(path: str, last: bool = False) -> str:
    """Returns the path of a `.keras` file, local or in a store.

    `path` is a file or the output folder of a run. In a folder, the model with the lowest val_loss
    is chosen, or the model after the `last` step.

    Raises:
        UserError: There is no model, or it cannot be read.
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
        why = f"a folder without {MODEL_FILE}" if is_run else "where there is no file"
        expected = "a .keras file that imageshards train wrote, or the output folder of a run"
        raise _refused(path, why, expected)
    if last and not is_run:
        raise UserError(
            argument="last",
            received="True together with " + Arg("model_path") + f" {path!r}, a file",
            expected="the output folder of a run",
            remedy="leave " + Arg("last") + " out",
        )
    return file


def _refused(path: str, why: str, expected: str = "", remedy: str = "") -> UserError:
    received = f"{path!r}, {why}"
    return UserError(argument="model_path", received=received, expected=expected, remedy=remedy)


def _local_copy(path: str) -> str:
    with _reading(path):
        return storage.local_copy(path)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        expected = "a readable model, and space in the temporary folder to copy it from a store"
        raise _refused(path, f"which cannot be read ({e.strerror or e})", expected) from e


def read_card(path: str) -> ModelCard:
    """Reads the card of the model that `locate` finds, without TensorFlow.

    Raises:
        UserError: The file is damaged, or has no card that this version can read.
    """
    try:
        with zipfile.ZipFile(_local_copy(locate(path))) as members:
            text = members.read(CARD_FILE).decode()
    except KeyError as e:
        raise _refused(path, f"in which there is no {CARD_FILE}", _OURS) from e
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as e:
        raise _refused(path, f"which is not a complete .keras file ({e})", _OURS) from e
    try:
        raw = json.loads(text)
        version = raw["format_version"]
        if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
            raise ValueError(f"format_version is {version}; this trainer knows {FORMAT_VERSION}")
        return convert(raw, ModelCard)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        remedy = "use the version of the trainer that wrote the file, or train again"
        raise _refused(path, f"whose {CARD_FILE} cannot be understood ({e})", remedy=remedy) from e


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
        """Returns the model as it was saved; only a user's own model is compiled.

        Call it inside the strategy's scope. The file may come from a stranger, so its code does not
        run unless the caller allows it.

        Raises:
            UserError: The file is damaged, or needs a module that is not allowed or cannot be
                imported.
        """
        # Keras takes seconds to import, and the refusals of `find_model` do without.
        import keras

        named, file = _function(self.card), _local_copy(self.file)
        if self.card.compiled:
            from trainer.serving.compiled import rebuild

            return rebuild(self.code or named, self.card, self.file, file)
        if self.code or (self.trust and named):
            from trainer.models.user_model import load_function

            load_function(self.code or named)  # The import registers the layers with Keras.
        try:
            return keras.saving.load_model(file, compile=False, safe_mode=not self.trust)
        except _KERAS_ERRORS as e:
            remedy = "decorate the classes of its layers with "
            remedy = remedy + "@keras.saving.register_keras_serializable()"
            if not (self.code or self.trust):
                own = "give "
                if named:
                    own = own + Arg("model", named) + " to import that module of yours, or "
                remedy = "no code of the model was run: " + (own + _TRUST) + "; and " + remedy
            why = f"which Keras cannot load ({_reason(e)})"
            raise _refused(self.file, why, remedy=remedy) from e

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
    """Finds the model in a run's folder, or in a file; refuses code that is not allowed.

    Args:
        path: The file, or the output folder of a run.
        last: Whether to take the model after the last step of a run.
        code: `module:function` of the training, which may be imported.
        trust: Whether the function that the card names, and lambdas in the file, may run.

    Raises:
        UserError: The file is missing, damaged or without a card, or needs a module that is not
            allowed.
    """
    path = storage.place("model_path", path)
    if code is not None and ":" not in code:
        raise UserError(
            argument="model",
            received=repr(code),
            expected="module:function, as in training",
            remedy="leave " + Arg("model") + " out where the model needs no code of yours",
        )
    file = locate(path, last)
    card = read_card(file)
    if card.compiled and not (code or trust):
        own = "give " + Arg("model", _function(card)) + " if the module is your code, or "
        why = f"a model compiled by {_function(card)!r}, a module that would be imported"
        raise _refused(file, why, remedy=own + _TRUST)
    return SavedModel(file, card, code, trust)


def _function(card: ModelCard) -> str:
    """Returns the user's `module:function` that made the model; empty for a built-in model."""
    name = str(card.training.get("model", ""))
    return name if ":" in name else ""


def _reason(error: BaseException) -> str:
    """Returns Keras's reason for an error, without the configuration that Keras quotes."""
    text = " ".join(str(error).split())
    # The error of an inner layer is quoted in the error of each outer layer.
    missing = re.search(r"Could not locate \w+ '[^']*'", text)
    return missing[0] if missing else text.rpartition("Exception encountered: ")[2][:300]


@contextlib.contextmanager
def not_compiled(model: keras.Model) -> Iterator[None]:
    """Hides the optimizer, which has twice the size of the weights, while Keras saves the model."""
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
    """Copies a `.keras` file, adds the card and removes the time of saving."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            info = zipfile.ZipInfo(entry.filename, NO_TIME)
            if entry.filename == _METADATA_FILE:
                metadata = json.loads(old.read(entry))
                metadata.pop("date_saved", None)
                new.writestr(info, json.dumps(metadata))
                continue
            info.file_size = entry.file_size  # `zipfile` chooses 64-bit offsets by this size.
            with old.open(entry) as reader, new.open(info, "w") as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)
        text = json.dumps({"format_version": FORMAT_VERSION, **msgspec.to_builtins(card)}, indent=1)
        new.writestr(zipfile.ZipInfo(CARD_FILE, NO_TIME), text)
