"""Finds by its name whether an input is a folder, glob, archive or table; checks the output."""

from __future__ import annotations

import fnmatch
import os
import pathlib
import re
from collections.abc import Sequence

from beam_pipeline import options as opt
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import ARCHIVES, DATASET, TABLE, InputOptions
from imageshards import storage
from imageshards.errors import Arg, UserError, wrong_input
from imageshards.manifest import NONE, QUARANTINE_NAME, REPORT_NAME, STAGING_NAME, TRANSFORM_NAME

_MAGIC = re.compile(r"[*?\[]")
_SUFFIX = re.compile(
    f"(?:{'|'.join(map(re.escape, opt.ARCHIVE_SUFFIXES + opt.TABLE_SUFFIXES))})$", re.IGNORECASE
)
_BRACES = re.compile(r"\{([^{}]*,[^{}]*|\d+\.\.\d+)\}")
# Folders of a dataset that a build replaces as a whole.
_REPLACED = (STAGING_NAME, TRANSFORM_NAME, QUARANTINE_NAME, REPORT_NAME)


def unfit_option(
    argument: str, value: str, path: str, problem: str, expected: str = "", remedy: str = ""
) -> UserError:
    received = f"{value}, but " + Arg("input") + f" {path!r} " + problem
    return invalid(argument, received, expected, remedy)


def is_glob(path: str) -> bool:
    """Returns whether a path is a pattern; `photos [2020]` is a folder if that folder exists."""
    return bool(_MAGIC.search(path)) and not (storage.is_local(path) and os.path.lexists(path))


def expand_braces(pattern: str) -> list[str]:
    """Expands `{00..03}.tar` and `{a,b}.tar` as the shell does, unless a file has that name.

    The numbers of a range have as many digits as its first number.
    """
    found = _BRACES.search(pattern)
    if not found or (storage.is_local(pattern) and os.path.lexists(pattern)):
        return [pattern]
    first, dots, last = found[1].partition("..")
    if dots:
        parts = [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
    else:
        parts = found[1].split(",")
    before, behind = pattern[: found.start()], pattern[found.end() :]
    return [name for part in parts for name in expand_braces(f"{before}{part}{behind}")]


def is_pattern(path: str) -> bool:
    """Returns whether a path stands for several files: a glob, or a path with braces."""
    return is_glob(path) or expand_braces(path) != [path]


def without_suffix(path: str) -> str:
    """Returns the path of an archive or a table without its ending."""
    return _SUFFIX.sub("", path)


def literal_prefix(pattern: str) -> str:
    """Returns the beginning that all names matching a pattern share."""
    return re.split(f"{_MAGIC.pattern}|{_BRACES.pattern}", pattern)[0]


def glob_root(pattern: str) -> str:
    """Returns the folder that contains everything that a pattern can match."""
    above, slash, _ = literal_prefix(pattern).rpartition("/")
    return above or slash or "."


def input_root(source: InputOptions) -> str:
    if is_glob(source.input):
        return glob_root(source.input)
    return source.input.rstrip("/") or "/"


def layout_of(source: InputOptions) -> str:
    """Returns the layout that the user asked for, or the layout that the input's name suggests.

    `folders` means that the names of the folders decide whether they are classes or splits.
    """
    if source.layout in (TABLE, DATASET, *opt.ANNOTATIONS):
        return source.layout
    name = expand_braces(source.input)[0].lower()
    is_file = not (storage.is_local(source.input) and os.path.isdir(source.input))
    if is_file and name.endswith(opt.ARCHIVE_SUFFIXES):
        return ARCHIVES
    if source.layout == "auto" and name.endswith(opt.TABLE_SUFFIXES) and is_file:
        return TABLE
    if source.label_regex is not None or source.label == NONE:
        return "flat"
    if source.layout != "auto":
        return source.layout
    return "flat" if is_glob(source.input) else "folders"


def check_output_apart(source: InputOptions, output: str) -> None:
    """Raises `UserError` if a build would list its own output, or replace a folder of its input."""
    root = input_root(source)
    for name in _REPLACED:
        replaced = storage.join(output, name)
        if _is_within(source.input, replaced) or _is_within(root, replaced):
            problem = f"in a folder that this build would replace, {replaced!r}"
            remedy = "choose another " + Arg("output") + ", or move the images"
            raise wrong_input(source.input, problem, remedy=remedy)
    # An image table names its images, so a dataset may be in the same folder.
    if layout_of(source) == TABLE or not _is_within(output, root):
        return
    if is_glob(source.input):
        pattern = source.input[len(root) :].strip("/")
        if not may_match_inside(pattern, _real(output).removeprefix(_real(root)).strip("/")):
            return
    where = "is" if _is_within(root, output) else "is inside"
    raise invalid(
        "output",
        f"{output!r}, which {where} " + Arg("input") + f" {source.input!r}",
        "a folder outside of the input",
    )


def check_inputs_apart(sources: Sequence[InputOptions]) -> None:
    """Raises `UserError` if images of an input would be listed again with another input."""
    for number, source in enumerate(sources):
        for other in (*sources[:number], *sources[number + 1 :]):
            if _real(source.input) == _real(other.input):
                raise wrong_input(source.input, "twice", "each input once", "leave one of them out")
            # Archives, tables and datasets may be in a folder of other images.
            are_folders = {layout_of(source), layout_of(other)}.isdisjoint(
                (TABLE, DATASET, ARCHIVES)
            )
            if are_folders and not is_glob(source.input) and _is_within(source.input, other.input):
                problem = f"a folder inside of {other.input!r}, so its images would be listed twice"
                raise wrong_input(source.input, problem, remedy="leave one of them out")


def _real(path: str) -> str:
    return (os.path.realpath(path) if storage.is_local(path) else path).rstrip("/")


def _is_within(path: str, folder: str) -> bool:
    """Returns whether a path is a folder or below that folder, also by way of links."""
    real = _real(folder)
    # A link in the folder may lead out of the folder, and the listing follows links.
    above = map(str, pathlib.Path(os.path.abspath(path)).parents) if storage.is_local(path) else ()
    return f"{_real(path)}/".startswith(f"{real}/") or real in map(_real, above)


def may_match_inside(pattern: str, folder: str) -> bool:
    """Returns whether a pattern may match files in a folder; both are relative to one root."""
    names = folder.split("/") if folder else []
    for number, part in enumerate(pattern.split("/")):
        # `**` crosses slashes. A pattern with more parts than the folder may match files inside.
        if "**" in part or number >= len(names):
            return True
        if not fnmatch.fnmatchcase(names[number], part):
            return False
    return False
