"""A trained model as one file: Keras's own `.keras` archive with a card of ours inside."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from imageshards.errors import UserError
from trainer.dataset.spec import FeatureSpec, ImageSpec, ModelCard, ModelInputs

# In the output folder of a run: the model, and the tensorflow-transform graph of its data set.
MODEL_FILE = "model.keras"
TRANSFORM_FOLDER = "transform_fn"
# Inside a model file.
CARD_FILE = "imageshards.json"
FORMAT_VERSION = 1

_METADATA_FILE = "metadata.json"
# The earliest time a zip file knows: the same model gives the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_KERAS_REFUSALS = (ValueError, TypeError, ImportError, AttributeError, LookupError, OSError)


def save_model(model: Any, path: str, card: ModelCard) -> None:
    """Saves a Keras model and its card, whole or not at all.

    The optimizer, loss and metrics stay outside: checkpoints keep them. The bytes are a
    function of the model, the card and the versions of Keras and h5py.

    Args:
        model: A `keras.Model`.
        path: Ends in `.keras`; an existing file is replaced.
        card: What must be known to use the model.

    Raises:
        UserError: The file cannot be written, for example to a full disk.
    """
    folder, name = os.path.split(path)
    raw, ready = (os.path.join(folder, f".{i}-{os.getpid()}-{name}") for i in ("raw", "ready"))
    try:
        with _not_compiled(model):
            model.save(raw)
        _add_card(raw, ready, card)
        os.replace(ready, path)
    except OSError as e:
        raise UserError(
            f"--output received {folder!r}, where {name} cannot be written ({e.strerror or e}); "
            "make room, then run the same command again."
        ) from e
    finally:
        for temporary in (raw, ready):
            if os.path.exists(temporary):
                os.remove(temporary)


def find_model(path: str) -> str:
    """The `.keras` file that `path`, a file or the folder of a run, means.

    Raises:
        UserError: There is none.
    """
    if os.path.isdir(path):
        inside = os.path.join(path, MODEL_FILE)
        if not os.path.isfile(inside):
            raise UserError(
                f"--model_path received {path!r}, a folder without {MODEL_FILE}; expected a "
                ".keras file that python -m trainer wrote, or its output folder."
            )
        return inside
    if not os.path.isfile(path):
        raise UserError(
            f"--model_path received {path!r}, where there is no file; expected a .keras file "
            "that python -m trainer wrote, or its output folder."
        )
    return path


def find_transform(path: str) -> str | None:
    """The tensorflow-transform graph that lies beside the model `path` means, if any does."""
    folder = os.path.join(os.path.dirname(find_model(path)), TRANSFORM_FOLDER)
    return folder if os.path.isdir(folder) else None


def read_card(path: str) -> ModelCard:
    """The card of a saved model; neither TensorFlow nor Keras is imported.

    Args:
        path: The `.keras` file, or the output folder of its run.

    Raises:
        UserError: There is no such file, it is no `.keras` archive, or no card is inside.
    """
    file = find_model(path)
    try:
        with zipfile.ZipFile(file) as archive:
            text = archive.read(CARD_FILE).decode()
    except KeyError as e:
        raise UserError(
            f"--model_path received {path!r}, in which there is no {CARD_FILE}: this trainer did "
            "not save it; expected a model that python -m trainer wrote."
        ) from e
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as e:
        raise UserError(
            f"--model_path received {path!r}, which is no whole .keras archive ({e}); expected "
            "a model that python -m trainer wrote."
        ) from e
    try:
        return _card_from_json(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise UserError(
            f"--model_path received {path!r}, whose {CARD_FILE} cannot be understood ({e}); "
            "use the version of the trainer that wrote it, or train again."
        ) from e


def load_model(path: str) -> tuple[Any, ModelCard]:
    """Loads a model that `save_model` saved; it is not compiled.

    Args:
        path: The `.keras` file, or the output folder of its run.

    Returns:
        The `keras.Model`, and its card.

    Raises:
        UserError: There is no such file, it is broken, has no card, or needs a module that
            cannot be imported.
    """
    card = read_card(path)
    import keras

    complaint = _import_users_module(str(card.training.get("model", "")))
    try:
        return keras.saving.load_model(find_model(path), compile=False), card
    except _KERAS_REFUSALS as e:
        reason = complaint or _reason(e)
        raise UserError(
            f"--model_path received {path!r}, which Keras cannot load ({reason}); run it where "
            "the modules it was trained with can be imported, and let its own layers be classes "
            "decorated with @keras.saving.register_keras_serializable()."
        ) from e


def _reason(error: BaseException) -> str:
    """What Keras says went wrong, without the configuration it quotes."""
    text = " ".join(str(error).split())
    # Errors of layers within layers are quoted one within the other.
    missing = re.search(r"Could not locate \w+ '[^']*'", text)
    return missing[0] if missing else text.rpartition("Exception encountered: ")[2][:300]


def _import_users_module(name: str) -> str | None:
    """Imports the module of a `module:function`, whose layers it registers; None: no complaint.

    A model without layers of its own loads without it.
    """
    if ":" not in name:
        return None
    from trainer.models.user_model import load_function

    try:
        load_function(name)
    except UserError as e:
        return str(e).rstrip(".")
    return None


@contextmanager
def _not_compiled(model: Any) -> Iterator[None]:
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
    """Copies a `.keras` archive, with the card and without the time of day."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            info = zipfile.ZipInfo(entry.filename, _NO_TIME)
            if entry.filename == _METADATA_FILE:
                metadata = json.loads(old.read(entry))
                metadata.pop("date_saved", None)
                new.writestr(info, json.dumps(metadata))
                continue
            info.file_size = entry.file_size  # tells whether it needs 64-bit offsets
            with old.open(entry) as reader, new.open(info, "w") as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)
        text = json.dumps(_card_to_json(card), indent=1)
        new.writestr(zipfile.ZipInfo(CARD_FILE, _NO_TIME), text)


def _card_to_json(card: ModelCard) -> dict[str, Any]:
    return {"format_version": FORMAT_VERSION, **dataclasses.asdict(card)}


def _card_from_json(raw: Mapping[str, Any]) -> ModelCard:
    version = raw["format_version"]
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise ValueError(f"format_version is {version}; this trainer knows {FORMAT_VERSION}")
    inputs, image = raw["inputs"], raw["inputs"]["image"]
    return ModelCard(
        classes=tuple(raw["classes"]),
        inputs=ModelInputs(
            size=_pair(inputs["size"]),
            image=ImageSpec(
                size=None if image["size"] is None else _pair(image["size"]),
                varies=image["varies"],
                channels=image["channels"],
                mean=tuple(image["mean"]),
                std=tuple(image["std"]),
                options=image["options"],
            ),
            features={
                name: FeatureSpec(
                    spec["dtype"], None if spec["shape"] is None else tuple(spec["shape"])
                )
                for name, spec in inputs["features"].items()
            },
            sequences=inputs["sequences"],
            sequence_length=inputs["sequence_length"],
        ),
        image_feature=raw["image_feature"],
        label_feature=raw["label_feature"],
        fingerprint=raw["fingerprint"],
        training=raw["training"],
        step=raw["step"],
    )


def _pair(sides: Any) -> tuple[int, int]:
    height_px, width_px = sides
    return int(height_px), int(width_px)
