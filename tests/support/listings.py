"""Inputs on this machine, and what a build lists of them."""

import collections
import pathlib

from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.listing import list_task, listing_tasks, schema_of
from beam_pipeline.options import InputOptions
from beam_pipeline.planning.refs import ImageRef, Label, RefBatch


def put(root: pathlib.Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode("utf-8", "surrogateescape"))


def batches_of(refs: list[ImageRef], size: int) -> list[RefBatch]:
    return [RefBatch(refs[i : i + size]) for i in range(0, len(refs), size)]


def listed(
    path: object, spool: str = "", draws: bool = True, **options
) -> tuple[dict[str, ImageRef], dict[str, int]]:
    """Key → reference, by key; and `reason` or `reason: name` → how often it was passed over.

    `path` is an input, or a list of inputs.
    """
    sources = [
        each if isinstance(each, InputOptions) else InputOptions(str(each), **options)
        for each in (path if isinstance(path, list) else [path])
    ]
    schemas = [schema_of(source) for source in sources]
    refs: list[ImageRef] = []
    skipped: collections.Counter[str] = collections.Counter()
    for task in listing_tasks(*sources, draws=draws):
        for found in list_task(task, sources[task.source], schemas[task.source], spool):
            if isinstance(found, Skipped):
                skipped[str(found)] += 1
            else:
                refs.append(found)
    return {ref.key: ref for ref in sorted(refs, key=lambda ref: ref.key)}, dict(skipped)


def labels(path: object, **options) -> dict[str, tuple[Label, str | None]]:
    """Key → (label, split)."""
    return {key: (ref.label, ref.split) for key, ref in listed(path, **options)[0].items()}
