"""Finished datasets as inputs: what they bring to a build, and what does not fit.

Records are copied, not encoded again. So a build of datasets has their image options, and extra
columns stay as they are in the records: the values that they were made from are not in there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from beam_pipeline.inputs.archives.members import with_files
from beam_pipeline.inputs.folders import is_dataset
from beam_pipeline.inputs.layout import is_glob, layout_of
from beam_pipeline.options import (
    ARCHIVES,
    DATASET,
    TABLE,
    TABLE_FLAGS,
    BuildOptions,
    ColumnSpec,
    CopiedColumns,
    CopiedInput,
    ImageOptions,
    InputOptions,
)
from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.manifest import (
    NONE,
    ONE,
    RECORD_NAMES,
    SEVERAL,
    TRANSFORM_NAME,
    Manifest,
    Origin,
    load_manifest,
)
from imageshards.typed import convert

# What decides the bytes of a record's picture has the flag of its name, but for the size.
_IMAGE_FLAGS = {"height_px": "image_size", "width_px": "image_size"} | {
    name: name
    for name in (
        "resize_mode", "filter", "quality", "subsampling", "colorspace", "background",
        "icc", "only_shrink",
    )
}  # fmt: skip

Found = tuple[InputOptions, Manifest]


def open_inputs(options: BuildOptions) -> BuildOptions:
    """The build with what finished datasets among its inputs bring.

    Their image options, and the order of their classes; unless they are given, the fractions of
    their splits and their salt. Everything that does not fit is told here, before any work.

    Raises:
        UserError: Datasets have different image options or columns, flags differ from theirs, or
            a flag is for none of the inputs.
    """
    options = options.with_sources([*map(with_files, options.sources)])
    options = options.with_sources(_with_layouts(options))
    found = [
        (source, load_manifest(source.input, "input", complete=True))
        for source in options.sources
        if source.layout == DATASET
    ]
    if not found:
        return options
    if options.transform_module is not None:
        raise UserError(
            argument="transform_module",
            received=f"{options.transform_module!r}, but "
            + Arg("input")
            + f" {found[0][0].input!r} is a finished dataset, whose records lack its inputs",
            remedy="leave it out, or build from the original images",
        )
    options = _with_plan(_with_labels(options, found), found)
    image, copied = _image_options(options, found), _copied_columns(options, found)
    known = iter(found)
    sources = [
        _contribution(*next(known), options) if source.layout == DATASET else source
        for source in options.sources
    ]
    return dataclasses.replace(options.with_sources(sources), image=image, copied=copied)


def _is_dataset(source: InputOptions) -> bool:
    """Whether an input is a dataset, which its content tells."""
    if source.layout == DATASET:
        return True
    return not _has_rows(source) and not is_glob(source.input) and is_dataset(source.input)


def _has_rows(source: InputOptions) -> bool:
    """Whether an input may have columns: a table, or archives, which may be a WebDataset."""
    return layout_of(source) in (TABLE, ARCHIVES)


def _with_layouts(options: BuildOptions) -> list[InputOptions]:
    """Inputs that know whether they are datasets, without the flags that are for another kind.

    A flag that is for none of them stays, and is refused where it is read.
    """
    are_datasets = [_is_dataset(source) for source in options.sources]
    others = [s for s, is_one in zip(options.sources, are_datasets, strict=True) if not is_one]
    has_table = any(map(_has_rows, others))
    for_tables: dict[str, Any] = {}
    if has_table:
        for_tables = {flag: getattr(InputOptions, flag) for flag in TABLE_FLAGS}
    has_folder = any(layout_of(source) != TABLE for source in others)
    found = []
    for source, is_one in zip(options.sources, are_datasets, strict=True):
        if is_one:
            for name in ("label_regex", "label_separator"):
                if getattr(source, name) is not None and not others:
                    raise UserError(
                        argument=name,
                        received=f"{getattr(source, name)!r}, but "
                        + Arg("input")
                        + f" {source.input!r} is a finished dataset, which has labels of its own",
                        remedy="leave it out",
                    )
            source = dataclasses.replace(source, layout=DATASET, label_regex=None, **for_tables)
        else:
            flags = {} if _has_rows(source) else for_tables
            source = dataclasses.replace(source, **flags)
        if has_folder and (is_one or layout_of(source) == TABLE):
            source = dataclasses.replace(source, exclude_glob=())
        found.append(source)
    return found


def _with_labels(options: BuildOptions, found: Sequence[Found]) -> BuildOptions:
    """The build with as many labels an image as --label says, else as the first dataset has."""
    label = options.source.label
    if label == ONE and "label" not in options.given:
        label = found[0][1].label
    for source, manifest in found:
        has = manifest.label
        if label not in (has, NONE) and (has, label) != (ONE, SEVERAL):
            raise UserError(
                argument="label",
                received=f"{label}, or other inputs have it, but "
                + Arg("input")
                + f" {source.input!r} is a dataset with "
                + Arg("label", has),
                expected="the same of all",
                remedy=Arg("label", NONE)
                + " leaves labels out, "
                + Arg("label", SEVERAL)
                + " makes lists of single ones",
            )
    return options.with_sources(
        [dataclasses.replace(source, label=label) for source in options.sources]
    )


def _with_plan(options: BuildOptions, found: Sequence[Found]) -> BuildOptions:
    """The build with the classes of datasets in their order, and the first one's splits."""
    classes = dict.fromkeys(name for _, manifest in found for name in manifest.classes)
    plan: dict[str, Any] = {"pinned_classes": tuple(classes)}
    first = found[0][1].options.get("plan", {})
    for name in ("splits", "salt"):
        if name not in options.given and first.get(name):
            plan[name] = first[name]
    return dataclasses.replace(options, plan=dataclasses.replace(options.plan, **plan))


def _contribution(source: InputOptions, manifest: Manifest, options: BuildOptions) -> CopiedInput:
    """Returns a dataset with what its manifest contributes.

    Raises:
        UserError: Its splits cannot be drawn again.
    """
    origin = convert(manifest.options, Origin)
    # Drawing again with the same fractions and salt would change nothing but splits that the
    # original input gave, so the records keep theirs.
    keeps = "splits" not in options.given or (
        (origin.plan.splits, origin.plan.salt) == (dict(options.plan.splits), options.plan.salt)
    )
    group = origin.input.group_column
    if group and not keeps:
        raise UserError(
            argument="splits",
            received=f"{dict(options.plan.splits)}, but "
            + Arg("input")
            + f" {source.input!r} was built with "
            + Arg("group_column", group)
            + ", which its records do not have",
            remedy="leave " + Arg("splits") + " out, or build from the original table",
        )
    return CopiedInput(
        **vars(source) | {"label": options.source.label},
        fingerprint=manifest.fingerprint,
        keeps_splits=keeps,
        record_label=manifest.label,
    )


def _image_options(options: BuildOptions, found: Sequence[Found]) -> ImageOptions:
    """Those of the datasets: what is given must be the same, limits may be others."""
    (first, manifest), *others = found
    image = _image_options_of(first.input, manifest)
    said, asked = _as_options(image), _as_options(options.image)
    for source, of_other in others:
        other = _as_options(_image_options_of(source.input, of_other))
        for name, option in said.items():
            if option != other[name]:
                raise UserError(
                    argument="input",
                    received=f"{first.input!r}, built with "
                    + option
                    + f", and {source.input!r}, built with "
                    + other[name],
                    expected="the same image options, as records are copied",
                    remedy="build one of them again from its original images",
                )
    for name, option in said.items():
        if name in options.given and asked[name] != option:
            raise UserError(
                argument=option.name,
                received=f"{asked[name].value}, but "
                + Arg("input")
                + f" {first.input!r} is a finished dataset built with "
                + option
                + ", whose records are copied",
                remedy="leave it out, or build from the original images",
            )
    limits = {field.name for field in dataclasses.fields(image)} - said.keys()
    given = {name: getattr(options.image, name) for name in limits & options.given}
    return dataclasses.replace(image, **given)


def _as_options(image: ImageOptions) -> dict[str, Arg]:
    """What decides the bytes of a picture, by name, as an option with its value."""
    size = f"{image.height_px}x{image.width_px}"
    values = dataclasses.asdict(image) | {
        "height_px": size, "width_px": size, "background": bytes(image.background).hex(),
    }  # fmt: skip
    return {name: Arg(flag, values[name]) for name, flag in _IMAGE_FLAGS.items()}


def _image_options_of(path: str, manifest: Manifest) -> ImageOptions:
    """How the pictures of a dataset were made.

    Raises:
        UserError: The manifest does not say it.
    """
    said = manifest.image
    try:
        wanted = msgspec.to_builtins(ImageOptions().to_manifest()).keys() - {"icc"}
        if absent := sorted(wanted - msgspec.to_builtins(said).keys()):
            raise KeyError(absent[0])
        return ImageOptions.from_manifest(said)
    except (KeyError, TypeError, ValueError, UserError) as e:
        raise UserError(
            argument="input",
            received=f"{path!r}, a dataset whose manifest.json does not say how its pictures were "
            f"made ({e})",
            remedy="build it again from its original images",
        ) from e


# Extra columns.


def _copied_columns(options: BuildOptions, found: Sequence[Found]) -> CopiedColumns | None:
    """Where the records have extra columns: the transform that made them, which goes with them.

    Raises:
        UserError: The records of all inputs would not have the same columns, made alike.
    """
    first, manifest = found[0]
    columns = _extra_columns(manifest)
    for source, other in found[1:]:
        if _extra_columns(other) != columns:
            raise UserError(
                argument="input",
                received=f"{first.input!r} with the extra columns {named(columns)} and "
                f"{source.input!r} with {named(_extra_columns(other))}",
                expected="the same ones of the same types",
                remedy="build one of them again from its original images",
            )
    if not columns:
        return None
    as_given = all(convert(manifest.options, Origin).columns_as_given for _, manifest in found)
    photos = [source.input for source in options.sources if source.layout != DATASET]
    if photos or (len(found) > 1 and not as_given):
        beside = photos[0] if photos else found[1][0].input
        raise UserError(
            argument="input",
            received=f"{first.input!r} with the extra columns {named(columns)}, which cannot be "
            f"joined with those of {beside!r}",
            expected="one dataset, or several whose columns were not scaled or transformed",
            remedy="build from the original tables together",
        )
    if any(manifest.label != options.source.label for _, manifest in found):
        raise UserError(
            argument="label",
            received=f"{options.source.label}, but "
            + Arg("input")
            + f" {first.input!r} has the extra columns {named(columns)} and a transform for other "
            "labels",
            remedy="build from the original table",
        )
    return CopiedColumns(storage.join(first.input, TRANSFORM_NAME), as_given)


def _extra_columns(manifest: Manifest) -> tuple[ColumnSpec, ...]:
    kinds = {"int64": "int", "float32": "float", "string": "string"}
    return tuple(
        ColumnSpec(name, kinds[spec.dtype], spec.shape)
        for name, spec in sorted(manifest.features.items())
        if name not in RECORD_NAMES
    )


def named(columns: Sequence[ColumnSpec]) -> str:
    """Columns for a message, as --columns declares them."""
    return ", ".join(map(str, columns)) or "(none)"
