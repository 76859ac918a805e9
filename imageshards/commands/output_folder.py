"""Checks that an output folder holds no files of the user, and says why it cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable, Iterator

from imageshards import storage
from imageshards.errors import OutputError, StorageError, UserError
from imageshards.manifest import PAGE_NAME

# The template imageshards/page/base.jinja writes this line into the head of every page.
_GENERATOR = b'<meta name="generator" content="imageshards">'
_HEAD_BYTES = 1024
# A user may write a job's log into its output folder, as in `| tee OUT/log.txt`.
_LOG_SUFFIXES = (".log", ".out", ".err", "log.txt")
_MAX_SHOWN = 3


def foreign_files(names: Iterable[str]) -> list[str]:
    """Returns the names that are neither logs of a job nor files of a system, in order."""
    # Every new ext4 volume has the folder lost+found. Systems and tools hide files by a dot.
    return [
        name for name in names if name != "lost+found" and not name.startswith(".")
        and not name.endswith(_LOG_SUFFIXES)
    ]  # fmt: skip


def foreign_files_error(argument: str, folder: str, foreign: list[str], ours: str) -> UserError:
    """Returns the error for an output folder with files that do not belong to `ours`.

    `ours` names the output that a job may replace, for example "unfinished build".
    """
    shown = ", ".join(map(repr, foreign[:_MAX_SHOWN]))
    more = f" and {len(foreign) - _MAX_SHOWN:,} more" if len(foreign) > _MAX_SHOWN else ""
    what = "1 file or folder" if len(foreign) == 1 else f"{len(foreign):,} files or folders"
    return UserError(
        argument=argument,
        received=f"{folder!r}, which holds {what} that no {ours} accounts for ({shown}{more})",
        expected="a new or empty folder",
        remedy=f"choose one, for example {folder.rstrip('/')}/new",
    )


def check_no_links(argument: str, directory: str, *names: str, inside: bool = False) -> None:
    """Checks that no folder of a dataset is a link, behind which a command would write or delete.

    With `inside`, no folder in one of the folders may be a link, either.

    Raises:
        UserError: A folder is a link; the dataset may come from a stranger.
    """
    for name in names if storage.is_local(directory) else ():
        path = storage.join(directory, name)
        links = [path] if os.path.islink(path) else []
        if inside and not links:
            found = storage.walk(path, lambda below: not os.path.islink(below))
            links = [entry.path for entry in found if entry.kind == "folder"]
        for link in links:
            raise UserError(
                argument=argument,
                received=f"{directory!r}, where {link!r} is a link to {os.path.realpath(link)!r}",
                expected="a folder of the dataset itself",
                remedy="delete the link",
            )


def check_page_folder(argument: str, folder: str, *beside: str) -> None:
    """Checks that a page and the files `beside` the page replace no files of the user.

    Raises:
        UserError: A file would be replaced that imageshards did not write.
    """
    try:
        # A page of imageshards shows that an earlier run wrote the files beside the page, too.
        if _GENERATOR in storage.read(storage.join(folder, PAGE_NAME), _HEAD_BYTES):
            return
        foreign = [PAGE_NAME]
    except OSError:
        foreign = []
    foreign += [name for name in beside if storage.exists(storage.join(folder, name))]
    if foreign:
        raise foreign_files_error(argument, folder, foreign, "former page of imageshards")


@contextlib.contextmanager
def output_errors(output: str, what: str, argument: str = "output") -> Iterator[None]:
    """Turns errors of a disk or a store in a `with` block, which writes `what` to `output`.

    Raises:
        OutputError: The disk is full, the user may not write, or the store cannot be reached.
    """
    try:
        yield
    except (StorageError, OSError) as e:
        # A store has no limit: the full disk is the one from which a file is uploaded.
        full = output if storage.is_local(output) else f"{tempfile.gettempdir()} (TMPDIR)"
        remedy = f"make room in {full}, " if getattr(e, "errno", 0) == errno.ENOSPC else ""
        raise OutputError(
            argument=argument,
            received=f"{output!r}, where {what} cannot be written "
            f"({getattr(e, 'strerror', None) or str(e).rstrip('.')})",
            expected="a place with free space and the right to write there",
            remedy=f"{remedy}then run the same command again",
        ) from e


def write_page(folder: str, page: str, argument: str = "output") -> str:
    """Writes a page to `folder`/index.html, whole or not at all, and returns its path."""
    path = storage.join(folder, PAGE_NAME)
    with output_errors(folder, PAGE_NAME, argument):
        storage.write(path, page)
    return path
