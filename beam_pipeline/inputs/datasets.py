"""Finds out what finished datasets among the inputs bring to a build, and refuses misfits.

Their records are listed from the index of each shard. Records are copied, not encoded again, so a
build from datasets has their image options. Extra columns stay as they are in the records, as the
original values are not stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from beam_pipeline import options as opt
from beam_pipeline.images.read import RECORD
from beam_pipeline.inputs.annotations.places import resolved
from beam_pipeline.inputs.annotations.refused import check_table
from beam_pipeline.inputs.archives.members import with_files
from beam_pipeline.inputs.folders import is_dataset
from beam_pipeline.inputs.layout import check_inputs_apart, is_glob, layout_of, unfit_option
from beam_pipeline.options import (
    DATASET,
    TABLE,
    BuildOptions,
    CopiedInput,
    ImageOptions,
    InputOptions,
)
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import Arg, UserError, wrong_input
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import (
    BOX_FEATURES,
    NONE,
    ONE,
    RECORD_NAMES,
    SEVERAL,
    TRANSFORM_NAME,
    Manifest,
    Shard,
)
from imageshards.manifest.file import Origin, keeps_jpegs, load_manifest
from imageshards.tfrecord import FRAME_BYTES
from imageshards.typed import convert

# Image options that decide the bytes of a record's picture → their flags.
_IMAGE_FLAGS = {"height_px": "image_size", "width_px": "image_size"} | {
    name: name
    for name in (
        "resize_mode", "filter", "quality", "subsampling", "colorspace", "background",
        "icc", "only_shrink",
    )
}  # fmt: skip

# Columns of an index from which records are listed.
_INDEX_COLUMNS = ("key", "offset", "num_bytes", "source_bytes", "class_name")
_BUILD_ONE_AGAIN = "build one of them again from its original images"

Found = tuple[InputOptions, Manifest]


def open_inputs(options: BuildOptions) -> BuildOptions:
    """Returns the build options with image options, class order and columns of its input datasets.

    Unless they are given, the fractions of the splits and the salt come from the first dataset.
    Raises `UserError`, before any work, if datasets have different image options or columns, flags
    differ from the datasets' options, or a flag fits no input.
    """
    # A folder of archives becomes a glob first, as the kind of an input decides which flags fit.
    options = options.with_sources([*map(with_files, options.sources)])
    for source in options.sources:
        check_table(source)
    options = options.with_sources(_with_layouts(options))
    check_inputs_apart(options.sources)
    found = [
        (source, load_manifest(source.input, "input", complete=True, adopted=False))
        for source in options.sources
        if source.layout == DATASET
    ]
    if not found:
        return options
    if options.transform_module is not None:
        value = repr(options.transform_module)
        problem = "is a finished dataset, whose records lack its inputs"
        remedy = "leave it out, or build from the original images"
        raise unfit_option("transform_module", value, found[0][0].input, problem, remedy=remedy)
    options = _with_plan(_with_labels(options, found), found)
    image, copied = _image_options(options, found), _copied_columns(options, found)
    manifests = iter(found)
    sources = [
        _contribution(*next(manifests), options) if source.layout == DATASET else source
        for source in options.sources
    ]
    return dataclasses.replace(options.with_sources(sources), image=image, copied=copied)


def _with_layouts(options: BuildOptions) -> list[InputOptions]:
    """Returns the inputs with layouts of datasets and annotations, which have their own labels."""
    found = []
    for source in options.sources:
        is_one = source.layout == DATASET or (
            source.layout == "auto"
            and layout_of(source) not in (TABLE, opt.ARCHIVES)  # these may lie beside a manifest
            and not is_glob(source.input)
            and is_dataset(source.input)
        )
        if is_one:
            source = dataclasses.replace(source, layout=DATASET, label_regex=None)
        found.append(resolved(source))
    annotated = [source for source in found if source.layout in opt.ANNOTATIONS]
    if not annotated or options.source.label != ONE:
        return found
    if "label" in options.given:
        problem = "is a detection dataset, where a picture has the classes of all its boxes"
        remedy = "say " + Arg("label", SEVERAL) + " or " + Arg("label", NONE)
        raise unfit_option("label", ONE, annotated[0].input, problem, remedy=remedy)
    return [dataclasses.replace(source, label=SEVERAL) for source in found]


def _with_labels(options: BuildOptions, found: Sequence[Found]) -> BuildOptions:
    """Returns the build with the kind of labels that --label or else the first dataset has."""
    label = options.source.label
    if label == ONE and "label" not in options.given:
        label = found[0][1].label
    for source, manifest in found:
        has = manifest.label
        # Labels can be left out, and a single label can become a list, but no list a single label.
        if label not in (has, NONE) and (has, label) != (ONE, SEVERAL):
            value = f"{label}, or other inputs have it"
            problem = "is a dataset with " + Arg("label", has)
            remedy = Arg("label", NONE) + " leaves labels out, " + Arg("label", SEVERAL)
            remedy += " makes lists of single ones"
            raise unfit_option("label", value, source.input, problem, "the same of all", remedy)
    return options.with_sources([dataclasses.replace(s, label=label) for s in options.sources])


def _with_plan(options: BuildOptions, found: Sequence[Found]) -> BuildOptions:
    """Returns the build with the classes of all datasets, and the splits of the first."""
    classes = dict.fromkeys(name for _, manifest in found for name in manifest.classes)
    plan: dict[str, Any] = {"pinned_classes": tuple(classes)}
    first = found[0][1].options.get("plan", {})
    for name in ("splits", "salt"):
        if name not in options.given and first.get(name):
            plan[name] = first[name]
    return dataclasses.replace(options, plan=dataclasses.replace(options.plan, **plan))


def _contribution(source: InputOptions, manifest: Manifest, options: BuildOptions) -> CopiedInput:
    """Returns a dataset with facts from its manifest; raises if splits cannot be drawn again."""
    keeps = "splits" not in options.given
    groups = convert(manifest.options, Origin).groups
    if groups and not keeps:
        value = str(dict(options.plan.splits))
        ((flag, given),) = groups.items()
        problem = "was built with groups by " + Arg(flag, given) + ", which its records do not have"
        remedy = "leave " + Arg("splits") + " out, or build from the original images"
        raise unfit_option("splits", value, source.input, problem, remedy=remedy)
    return CopiedInput(
        **vars(source) | {"label": options.source.label},
        fingerprint=manifest.fingerprint,
        keeps_splits=keeps,
        record_label=manifest.label,
        groups=groups,
    )


def _image_options(options: BuildOptions, found: Sequence[Found]) -> ImageOptions:
    """Returns the datasets' image options; given options must be equal, except for limits."""
    (first, manifest), *others = found
    image = _image_options_of(first.input, manifest)
    said, asked = _as_options(image), _as_options(options.image)
    for source, of_other in others:
        other = _as_options(_image_options_of(source.input, of_other))
        for name, option in said.items():
            if option != other[name]:
                problem = (
                    "built with " + option + f", and {source.input!r}, built with " + other[name]
                )
                expected = "the same image options, as records are copied"
                raise wrong_input(first.input, problem, expected, _BUILD_ONE_AGAIN)
    for name, option in said.items():
        if name in options.given and asked[name] != option:
            value = str(asked[name].value)
            problem = "is a finished dataset built with " + option + ", whose records are copied"
            remedy = "leave it out, or build from the original images"
            raise unfit_option(option.name, value, first.input, problem, remedy=remedy)
    # Limits do not change the bytes of a picture, so a build may set them anew.
    limits = {field.name for field in dataclasses.fields(image)} - said.keys()
    given = {name: getattr(options.image, name) for name in limits & options.given}
    return dataclasses.replace(image, **given)


def _as_options(image: ImageOptions) -> dict[str, Arg]:
    """Returns, by name, the options that decide the bytes of a picture, with their values."""
    size = f"{image.height_px}x{image.width_px}"
    values = dataclasses.asdict(image) | {
        "height_px": size, "width_px": size, "background": bytes(image.background).hex(),
        "quality": image.quality or "unset", "subsampling": image.subsampling or "unset",
    }  # fmt: skip
    return {name: Arg(flag, values[name]) for name, flag in _IMAGE_FLAGS.items()}


def _image_options_of(path: str, manifest: Manifest) -> ImageOptions:
    """Returns how the pictures of a dataset were made; raises if the manifest lacks this."""
    said = manifest.image
    try:
        # Some manifests lack `icc`, for which `from_manifest` has a default.
        wanted = msgspec.to_builtins(ImageOptions().to_manifest()).keys() - {"icc"}
        if keeps_jpegs(manifest):
            wanted -= {"quality", "subsampling"}
        if absent := sorted(wanted - msgspec.to_builtins(said).keys()):
            raise KeyError(absent[0])
        return ImageOptions.from_manifest(said)
    except (KeyError, TypeError, ValueError, UserError) as e:
        problem = f"a dataset whose manifest.json does not say how its pictures were made ({e})"
        raise wrong_input(path, problem, remedy="build it again from its original images") from e


def _copied_columns(options: BuildOptions, found: Sequence[Found]) -> opt.CopiedColumns | None:
    first, manifest = found[0]
    columns = _extra_columns(manifest)
    for source, other in found[1:]:
        if _extra_columns(other) != columns:
            expected = "the same ones of the same types"
            pair = (first.input, columns), (source.input, _extra_columns(other))
            raise different_columns(*pair, expected, _BUILD_ONE_AGAIN)
    if not columns:
        return None
    if options.drop_class and options.source.label == SEVERAL and _has_boxes(columns):
        value = ", ".join(options.drop_class)
        problem = "is a finished dataset, in whose records the boxes of the class would stay"
        remedy = "build from the original table"
        raise unfit_option("drop_class", value, first.input, problem, remedy=remedy)
    # Records hold the values that a transform made, and a transform has learned from one dataset.
    as_given = all(convert(manifest.options, Origin).columns_as_given for _, manifest in found)
    photos = [source.input for source in options.sources if source.layout != DATASET]
    if photos or (len(found) > 1 and not as_given):
        beside = photos[0] if photos else found[1][0].input
        problem = f"with the extra columns {_named(columns)}, which cannot be joined with those of "
        problem += repr(beside)
        expected = "one dataset, or several whose columns were not scaled or transformed"
        remedy = "build from the original tables together"
        raise wrong_input(first.input, problem, expected, remedy)
    if any(manifest.label != options.source.label for _, manifest in found):
        problem = f"has the extra columns {_named(columns)} and a transform for other labels"
        remedy = "build from the original table"
        raise unfit_option("label", options.source.label, first.input, problem, remedy=remedy)
    return opt.CopiedColumns(storage.join(first.input, TRANSFORM_NAME), as_given)


def _extra_columns(manifest: Manifest) -> tuple[opt.ColumnSpec, ...]:
    kinds = {"int64": "int", "float32": "float", "string": "string"}
    return tuple(
        opt.ColumnSpec(name, kinds[spec.dtype], spec.shape)
        for name, spec in sorted(manifest.features.items())
        if name not in RECORD_NAMES
    )


def _has_boxes(columns: Sequence[opt.ColumnSpec]) -> bool:
    return not {*BOX_FEATURES}.isdisjoint(column.name for column in columns)


def different_columns(
    one: tuple[str, Sequence[opt.ColumnSpec]],
    other: tuple[str, Sequence[opt.ColumnSpec]],
    expected: str,
    remedy: str,
) -> UserError:
    """Returns the error for two inputs, each with its extra columns, that differ in the columns."""
    problem = f"with the extra columns {_named(one[1])}, and {other[0]!r}, with {_named(other[1])}"
    return wrong_input(one[0], problem, expected, remedy)


def _named(columns: Sequence[opt.ColumnSpec]) -> str:
    return ", ".join(map(str, columns)) or "(none)"


def as_copied(source: InputOptions) -> CopiedInput:
    return source if isinstance(source, CopiedInput) else CopiedInput(**vars(source))


def shards_to_list(source: CopiedInput) -> Iterator[tuple[str, str | None, Shard]]:
    """Yields (path, split that its records keep, entry of the manifest) of each shard."""
    manifest = load_manifest(source.input, "input", adopted=False)
    if source.fingerprint and manifest.fingerprint != source.fingerprint:
        problem = "which was replaced while this build read it"
        raise wrong_input(source.input, problem, remedy="run the same command again")
    for split, entry in manifest.shards():
        yield storage.join(source.input, entry.file), split if source.keeps_splits else None, entry


def list_records(
    path: str, split: str | None, entry: Shard, labels: tuple[str, str] = (ONE, ONE)
) -> Iterator[ImageRef]:
    """Yields references to the records of a shard, in their order, from the index.

    `split` is the split that its records keep; None if splits are drawn again. `labels` says how
    many labels the records have, and how many they are going to have. Raises `UserError` if the
    index is missing, or the index or the shard does not match the manifest.
    """
    has, wanted = labels
    names = _INDEX_COLUMNS[:-1] if wanted == NONE else _INDEX_COLUMNS
    schema = index_schema({}, has, names)
    table = read_shard_index(storage.parent_of(path), entry, schema, "input")
    found = [table[name].to_pylist() for name in names]
    if wanted == NONE:
        found.append([None] * len(table))
    elif wanted == SEVERAL:
        found[-1] = [(name,) if has == ONE else tuple(name) for name in found[-1]]
    stored = storage.stat(path)
    blank = ImageRef(
        "", path, None, split, form=RECORD, version=stored.version if stored else "",
        # In place of a time: a resumed build must not mix two versions of a shard.
        mtime_ns=int(entry.sha256[:15], 16),
    )  # fmt: skip
    for key, offset, num_bytes, source_bytes, label in zip(*found, strict=True):
        size_bytes = num_bytes - FRAME_BYTES
        yield blank._replace(
            key=key, label=label, size_bytes=size_bytes, offset_bytes=offset,
            source_bytes=source_bytes,
        )  # fmt: skip
