"""Reads, checks and writes `manifest.json`, the file that makes a folder a dataset."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from imageshards import storage, tfrecord
from imageshards.bounds import MAX_JSON_BYTES, MAX_LINE_BYTES
from imageshards.errors import Arg, DamagedManifestError, LeaseLostError, UserError
from imageshards.manifest import (
    ADOPT_AGAIN,
    BUILD_AGAIN,
    MANIFEST_NAME,
    QUARANTINE_NAME,
    REJECTS_NAME,
    REPLACED_NAME,
    STAGING_NAME,
    TRAIN_NAMES,
    VALIDATION_NAMES,
    Manifest,
    Number,
    record_features,
)
from imageshards.typed import convert, decode, decode_object

FORMAT_VERSION: Final = 1

RECORDS_ROOT_HELP = (
    "for an adopted dataset whose records are in another folder than its manifest: local folder, "
    "gs:// or s3:// place that holds the records (default: only the dataset's folder)"
)


class Reject(msgspec.Struct, frozen=True):
    """An image that did not become a record: a line of `quarantine/rejects.jsonl`.

    Attributes:
        key, label, split: The key, label and split that the record would have had.
        uri: The path or URI of the image.
        reason: A stable code, for example `truncated`.
        stage: `read`, `decode` or `copy`.
        message: The details for people.
    """

    key: str
    uri: str
    label: str
    split: str
    reason: str
    stage: str
    message: str

    @property
    def may_be_temporary(self) -> bool:
        """Whether another run may accept the image."""
        # A file or a host may come back, and a crash may have come from a lack of memory.
        return self.stage == "read" or self.reason == "decoder_crashed"


class ListingOptions(msgspec.Struct, frozen=True):
    """The options of an input that later commands read."""

    group_column: str | None = None
    label_regex: str | None = None


class PlanOptions(msgspec.Struct, frozen=True):
    """The options of the split that later commands read."""

    splits: dict[str, Number] | None = None
    salt: str | None = None


class Origin(msgspec.Struct, frozen=True):
    """The options of a build that a later build reads from `Manifest.options`."""

    input: ListingOptions = ListingOptions()
    more_inputs: list[ListingOptions] = []
    plan: PlanOptions = PlanOptions()
    columns_as_given: bool = False

    @property
    def groups(self) -> dict[str, str]:
        """The option that gave groups to the images, with its value; {} if none did."""
        for listing in (self.input, *self.more_inputs):
            if listing.group_column:
                return {"group_column": listing.group_column}
            if "(?P<group>" in (listing.label_regex or ""):
                return {"label_regex": str(listing.label_regex)}
        return {}


def load_manifest(
    path: str | os.PathLike[str],
    argument: str = "path",
    *,
    complete: bool = False,
    adopted: bool = True,
    records_root: str | os.PathLike[str] | None = None,
) -> Manifest:
    """Reads and checks `path/manifest.json`, which may come from a stranger.

    Args:
        path: The dataset, on this machine or in a store.
        argument: The name of the argument that received `path`, for errors.
        complete: Whether the manifest must describe all features and pictures of a build; readers
            of records need less.
        adopted: Whether the dataset may be one that `imageshards adopt` described.
        records_root: A folder or place in a store in which the manifest may name shards, besides
            the dataset's own folder.

    Raises:
        DamagedManifestError: The manifest is damaged.
        UserError: The manifest is missing, cannot be read, comes from a newer version, or names a
            place that is not allowed; or its store cannot be used.
    """
    directory = storage.place(argument, path)
    data, raw = _read(directory, argument), None
    # The order of the checks gives the most helpful error: a manifest that was edited by hand has
    # the wrong digest, but the wrong key says more.
    try:
        raw = decode_object(data)
        _check_version(argument, directory, raw)
        manifest = convert(raw, Manifest)
        convert(manifest.options, Origin)
        if complete and not manifest.adopted:
            _check_complete(manifest)
    except ValueError as e:
        raise _damaged(
            argument, directory, f"whose {MANIFEST_NAME} could not be read: {e}", raw
        ) from e
    if manifest.adopted and not adopted:
        raise UserError(
            argument=argument,
            received=f"{directory!r}, whose records another tool wrote",
            expected="a dataset that imageshards build wrote",
            remedy="use an adopted dataset with all commands except build",
        )
    if manifest.digest != digest_of(raw):
        raise _damaged(argument, directory, "does not have the digest of its content", raw)
    check_folders(argument, directory, manifest, records_root)
    return manifest


def _check_version(argument: str, directory: str, raw: Mapping[str, Any]) -> None:
    # JSON's `true` is an `int` for `isinstance`.
    version = raw.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise UserError(
            argument=argument,
            received=f"{directory!r}, whose {MANIFEST_NAME} has format_version {version}; this "
            f"release reads up to {FORMAT_VERSION}",
            remedy="upgrade imageshards",
        )


def _check_complete(manifest: Manifest) -> None:
    for name, wanted in record_features(manifest.label).items():
        found = manifest.features.get(name)
        if found is None:
            raise ValueError(f"features.{name} is missing")
        if found != wanted:
            raise ValueError(f"features.{name} is {found.dtype} of {found.form}")
    if manifest.image.size is None:
        raise ValueError("image.size is None; expected one side or two, in pixels")


def _read(directory: str, argument: str) -> bytes:
    try:
        return storage.read(storage.join(directory, MANIFEST_NAME), MAX_JSON_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise _no_dataset(argument, directory) from None
    except OSError as e:
        # TensorFlow quotes the whole answer of a store, over several lines.
        reason = (e.strerror or str(e)).strip().splitlines()[0].rstrip(". ")
        raise UserError(
            argument=argument,
            received=f"{directory!r}, whose {MANIFEST_NAME} could not be read ({reason})",
            expected="a file that may be read",
            remedy="fix its permissions, or try again",
        ) from e


def _damaged(
    argument: str, directory: str, wrong: str, raw: Mapping[str, Any] | None
) -> DamagedManifestError:
    remedy = ADOPT_AGAIN if raw is not None and "adopted" in raw else BUILD_AGAIN
    return DamagedManifestError(
        argument=argument,
        received=f"{directory!r}, whose {MANIFEST_NAME} {wrong}",
        expected="the file as it was written",
        remedy=f"copy it again, or {remedy}",
    )


def fingerprint_of(manifest: Manifest) -> str:
    """Returns a hash of the records and of their description, the same after an equal build.

    A run compares this hash when it resumes. The place of the dataset, counts of other files, and
    the version of PyArrow, which determines the bytes of an index, do not change the hash.
    """
    whole = manifest.to_builtins()
    for split in whole["splits"].values():
        for shard in split["shards"]:
            del shard["index"]
            shard.pop("folder", None)
    of_adopted = ("adopted", "first_label") if manifest.adopted else ()
    names = ("splits", "classes", "features", "image", *of_adopted)
    hashed = {name: whole.get(name) for name in names}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def keeps_jpegs(manifest: Manifest) -> bool:
    """Returns whether a build copied JPEGs that needed no change; the index then says which."""
    image = manifest.image
    return image.mode == "none" and image.quality is None and manifest.adopted is None


def find_splits(names: str, splits: Collection[str], argument: str) -> list[str]:
    """Returns the splits that `names` lists between commas, in the order of the manifest.

    Raises:
        UserError: No split has one of the names, or a split is named twice; the error names
            `argument`.
    """
    found = [find_split(one.strip(), splits, argument, names) for one in names.split(",")]
    if len({*found}) < len(found):
        raise UserError(argument=argument, received=repr(names), expected="each split once")
    return [split for split in splits if split in found]


def find_split(name: str, splits: Collection[str], argument: str, received: str = "") -> str:
    """Returns the split of this name, or of a name that means the same (`val`, `validation`).

    Raises:
        UserError: No split has the name; the error names `argument`, and what it received if that
            was more than the name.
    """
    usual = next((names for names in (TRAIN_NAMES, VALIDATION_NAMES) if name in names), ())
    found = next((one for one in (name, *usual) if one in splits), None)
    if found is None:
        expected = f"one of {', '.join(splits) or 'none'}"
        if received not in ("", name):
            expected = f"some of {', '.join(splits) or 'none'}, not {name!r}"
        raise UserError(argument=argument, received=repr(received or name), expected=expected)
    return found


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a manifest without its key `digest`, as compact, sorted JSON."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _no_dataset(argument: str, directory: str) -> UserError:
    """Returns the error for a missing dataset, whose remedy depends on the files in the folder."""
    staging = storage.join(directory, STAGING_NAME)
    what = f"where there is no {MANIFEST_NAME}"
    remedy = "name a dataset, or build one: imageshards build --input PHOTOS --output FOLDER"
    with contextlib.suppress(OSError):
        # A store may hold millions of objects; the first names are enough for a guess.
        some = itertools.islice(storage.files_below(directory), 1000)
        if storage.is_local(directory) and not os.path.isdir(directory):
            what = "which is no folder"
        elif storage.is_folder(staging):
            before = storage.join(staging, REPLACED_NAME)
            is_there = storage.exists(storage.join(before, MANIFEST_NAME))
            kept = f", and the dataset before it is in {before}" if is_there else ""
            remedy = (
                f"its build has not ended{kept}; wait for it, or run it again if it was stopped"
            )
        elif any(tfrecord.FILE_NAME.search(found.name) for found in some):
            remedy = f"describe these TFRecords by imageshards adopt {directory}"
    return UserError(argument=argument, received=f"{directory!r}, {what}", remedy=remedy)


def read_rejects(directory: str) -> Iterator[Reject]:
    """Yields the lines of `quarantine/rejects.jsonl`.

    Raises:
        OSError: The file is missing or cannot be read.
        ValueError: A line is damaged.
    """
    with storage.open_read(storage.join(directory, QUARANTINE_NAME, REJECTS_NAME)) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
            if not line.strip():
                continue
            try:
                yield decode(line, Reject)
            except ValueError as e:
                raise ValueError(f"line {number}: {e}") from e


def publish_manifest(directory: str, manifest: Manifest, replaces: bool = False) -> Manifest:
    """Writes `directory/manifest.json`, whole or not at all, which makes the folder a dataset.

    Args:
        directory: The dataset, whose other files are complete.
        manifest: The manifest without its digest.
        replaces: Whether to replace the manifest that the folder has.

    Returns:
        The manifest with the digest of its content.

    Raises:
        LeaseLostError: The folder has the manifest of another dataset.
    """
    written = msgspec.structs.replace(manifest, digest=digest_of(manifest.to_builtins()))
    path, text = storage.join(directory, MANIFEST_NAME), to_json(written.to_builtins())
    if replaces:
        storage.write(path, text)
    # The same manifest may exist already: a store's answer may get lost, and Beam may run a step
    # again.
    elif not storage.write_new(path, text) and _fingerprint_in(path) != manifest.fingerprint:
        raise LeaseLostError(
            f"another process has put a dataset into {directory!r} meanwhile, so this command "
            "publishes nothing; choose another folder, or run the command again when no other "
            "process writes there."
        )
    storage.sync(directory)
    return written


def _fingerprint_in(path: str) -> Any:
    """Returns the fingerprint in a manifest; None for a file that is missing or no manifest."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return decode_object(storage.read(path, MAX_JSON_BYTES + 1)).get("fingerprint")
    return None


def to_json(value: Any) -> str:
    """Returns readable JSON, with equal bytes for equal content; all JSON files use this form."""
    return json.dumps(value, indent=1, sort_keys=False, ensure_ascii=False) + "\n"


def shard_path(directory: str, name: str) -> str:
    """Returns the path of the shard with this `Shard.name`, for a dataset in `directory`."""
    return name if is_outside(name) else storage.join(directory, name)


def is_outside(folder: str) -> bool:
    """Returns whether the folder of a shard is not below the dataset's own folder."""
    return folder.startswith("/") or not storage.is_local(folder)


def outside_folders(manifest: Manifest) -> list[str]:
    """Returns each folder outside of the dataset's own that the manifest names, in order."""
    return sorted({shard.folder for _, shard in manifest.shards() if is_outside(shard.folder)})


def common_root(folders: Iterable[str]) -> str:
    """Returns the lowest place that all folders are in or below; "" where there is none."""
    parts = os.path.commonprefix([folder.rstrip("/").split("/") for folder in folders])
    if parts == [""]:
        return "/"
    # Two buckets share only `gs:` and an empty part, which is no place.
    return "" if parts[-1:] == [""] or not parts else "/".join(parts)


def check_folders(
    argument: str, directory: str, manifest: Manifest, records_root: str | os.PathLike[str] | None
) -> None:
    """Checks that a manifest names no shard outside of the dataset's folder and `records_root`.

    `imageshards adopt --output FOLDER` leaves shards where they are, so its manifest names their
    folders. A manifest may come from a stranger, so only the user allows places outside of the
    dataset's folder.

    Raises:
        UserError: A shard is in another place; the error names `argument`.
    """
    refused = outside_folders(manifest)
    if records_root is not None:
        root = storage.absolute_place("records_root", records_root).rstrip("/")
        # With a slash at both ends, `/data` does not allow `/data-2`.
        places = (
            (f, os.path.abspath(f) if storage.is_local(f) else f.rstrip("/")) for f in refused
        )
        refused = [f for f, place in places if not f"{place}/".startswith(f"{root}/")]
    if not refused:
        return
    more = f" and {len(refused) - 1:,} other places" if len(refused) > 1 else ""
    raise UserError(
        argument=argument,
        received=f"{directory!r}, whose manifest says that shards are in {refused[0]!r}{more}, "
        "outside of the dataset's folder",
        expected="a place that you allow",
        remedy="if you know where the dataset comes from, give "
        + Arg("records_root", common_root(refused) or refused[0]),
    )
