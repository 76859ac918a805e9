"""Finds by its name whether an input is a folder, glob, archive or table; checks the output."""

from __future__ import annotations

import fnmatch
import os
import pathlib
import re

from beam_pipeline.options import (
    ARCHIVE_SUFFIXES,
    ARCHIVES,
    DATASET,
    TABLE,
    TABLE_SUFFIXES,
    InputOptions,
)
from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.manifest import NONE, QUARANTINE_NAME, REPORT_NAME, STAGING_NAME, TRANSFORM_NAME
from imageshards.storage import is_local

_MAGIC = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*|\d+\.\.\d+)\}")
# Folders of a dataset that a build replaces as a whole.
_REPLACED = (STAGING_NAME, TRANSFORM_NAME, QUARANTINE_NAME, REPORT_NAME)


def is_glob(path: str) -> bool:
    """Whether a path is a pattern; `photos [2020]` is a folder if there is one of that name."""
    return bool(_MAGIC.search(path)) and not (is_local(path) and os.path.lexists(path))


def expand_braces(pattern: str) -> list[str]:
    """Expands `{00..03}.tar` and `{a,b}.tar` as the shell does, unless a file has that name.

    The numbers of a range have as many digits as its first number.
    """
    found = _BRACES.search(pattern)
    if not found or (is_local(pattern) and os.path.lexists(pattern)):
        return [pattern]
    first, dots, last = found[1].partition("..")
    if dots:
        parts = [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
    else:
        parts = found[1].split(",")
    before, behind = pattern[: found.start()], pattern[found.end() :]
    return [name for part in parts for name in expand_braces(f"{before}{part}{behind}")]


def literal_prefix(pattern: str) -> str:
    """What every name that a pattern matches begins with."""
    return re.split(f"{_MAGIC.pattern}|{_BRACES.pattern}", pattern)[0]


def glob_root(pattern: str) -> str:
    """The folder above everything that a pattern can match."""
    above, slash, _ = literal_prefix(pattern).rpartition("/")
    return above or slash or "."


def input_root(source: InputOptions) -> str:
    """The folder that keys are relative to."""
    if is_glob(source.input):
        return glob_root(source.input)
    return source.input.rstrip("/") or "/"


def layout_of(source: InputOptions) -> str:
    """The layout asked for, or the one that the input's name tells; `ARCHIVES` for archives.

    `folders` means that the folders' names must tell whether they are classes or splits.

    Raises:
        UserError: A regex for labels was given with an image table.
    """
    if source.layout in (TABLE, DATASET):
        return source.layout
    name = expand_braces(source.input)[0].lower()
    is_file = not (is_local(source.input) and os.path.isdir(source.input))
    if is_file and name.endswith(ARCHIVE_SUFFIXES):
        return ARCHIVES
    if source.layout == "auto" and name.endswith(TABLE_SUFFIXES):
        if is_file:
            if source.label_regex is not None:
                raise UserError(
                    argument="label_regex",
                    received=f"{source.label_regex!r}, but "
                    + Arg("input")
                    + f" {source.input!r} is an image table, which has labels in a column",
                    remedy="leave it out, or name that column by " + Arg("label_column"),
                )
            return TABLE
    if source.label_regex is not None or source.label == NONE:
        return "flat"
    if source.layout != "auto":
        return source.layout
    return "flat" if is_glob(source.input) else "folders"


def check_output_apart(source: InputOptions, output: str) -> None:
    """Checks that the next build would not list the output, and this one not replace its input.

    An image table names its images one by one, so a dataset may be beside it.

    Raises:
        UserError: The output is the input or inside it, or the input is in a folder of the
            output that a build replaces.
    """
    root = input_root(source)
    for name in _REPLACED:
        replaced = storage.join(output, name)
        if _is_within(source.input, replaced) or _is_within(root, replaced):
            raise UserError(
                argument="input",
                received=f"{source.input!r}, in a folder that this build would replace, "
                f"{replaced!r}",
                remedy="choose another " + Arg("output") + ", or move the images",
            )
    if layout_of(source) == TABLE or not _is_within(output, root):
        return
    if is_glob(source.input):
        pattern = source.input[len(root) :].strip("/")
        if not may_match_inside(pattern, _real(output).removeprefix(_real(root)).strip("/")):
            return
    where = "is" if _is_within(root, output) else "is inside"
    raise UserError(
        argument="output",
        received=f"{output!r}, which {where} "
        + Arg("input")
        + f" {source.input!r}, which is only read",
        expected="a folder outside of it",
        remedy="choose another one",
    )


def _real(path: str) -> str:
    return (os.path.realpath(path) if is_local(path) else path).rstrip("/")


def _is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or below it, also by way of links."""
    real = _real(folder)
    # A link in the folder may lead out of it, and the listing follows links.
    above = map(str, pathlib.Path(os.path.abspath(path)).parents) if is_local(path) else ()
    return f"{_real(path)}/".startswith(f"{real}/") or real in map(_real, above)


def may_match_inside(pattern: str, folder: str) -> bool:
    """Whether a pattern may match files in a folder, both relative to the root of the pattern."""
    names = folder.split("/") if folder else []
    for number, part in enumerate(pattern.split("/")):
        if "**" in part or number >= len(names):
            return True
        if not fnmatch.fnmatchcase(names[number], part):
            return False
    return False
