"""Whether an output folder may be written: what is not ours there is never replaced or removed."""

from __future__ import annotations

from collections.abc import Iterable

from imageshards import storage
from imageshards.errors import UserError

# What every page of ours says in its head (imageshards/page/base.jinja).
_GENERATOR = b'<meta name="generator" content="imageshards">'
_HEAD_BYTES = 1024
# Beside results a job's log may lie (`| tee OUT/log.txt`), what begins with a dot, such as
# .gitkeep, and the folder at the root of every fresh volume.
_LOG_SUFFIXES = (".log", ".out", ".err", "log.txt")
_LOST_AND_FOUND = "lost+found"
_MAX_SHOWN = 3


def foreign_files(names: Iterable[str]) -> list[str]:
    """The names of files and folders that are neither a job's log nor a system's, in order."""
    return [
        name for name in names if name != _LOST_AND_FOUND and not name.startswith(".")
        and not name.endswith(_LOG_SUFFIXES)
    ]  # fmt: skip


def foreign_files_error(argument: str, folder: str, foreign: list[str], ours: str) -> UserError:
    """The error for an output folder with files that nothing of `ours` accounts for, such as an
    "unfinished build".
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


def check_page_folder(argument: str, folder: str, page: str, *beside: str) -> None:
    """Refuses to replace files of the user's own by a page, or by what is written beside it.

    Where there is a page of that name that is one of ours, so is what lies beside it.

    Raises:
        UserError: One of the files is there, and the page is not one of ours.
    """
    try:
        if _GENERATOR in storage.read(storage.join(folder, page), _HEAD_BYTES):
            return
        foreign = [page]
    except OSError:
        foreign = []
    foreign += [name for name in beside if storage.exists(storage.join(folder, name))]
    if foreign:
        raise foreign_files_error(argument, folder, foreign, "former page of imageshards")
