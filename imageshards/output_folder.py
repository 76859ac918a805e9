"""Whether an output folder may be written: files of its owner's own are not mixed with results."""

from __future__ import annotations

from collections.abc import Iterable

from imageshards.errors import UserError

# Beside results a job's log may lie, and what begins with a dot, such as .gitkeep.
_LOG_SUFFIXES = (".log", ".out", ".err")
_MAX_SHOWN = 3


def foreign_files(names: Iterable[str], ours: Iterable[str]) -> list[str]:
    """The names in a folder that neither we nor a log could have put there.

    Args:
        names: Of the files and folders in it.
        ours: Those that we write.
    """
    known = set(ours)
    return [
        name for name in names if name not in known and not name.startswith(".")
        and not name.endswith(_LOG_SUFFIXES)
    ]  # fmt: skip


def foreign_files_error(output: str, foreign: list[str]) -> UserError:
    """The error for an `--output` with files that no run of ours has written."""
    shown = ", ".join(map(repr, foreign[:_MAX_SHOWN]))
    more = f" and {len(foreign) - _MAX_SHOWN:,} more" if len(foreign) > _MAX_SHOWN else ""
    what = "1 file or folder" if len(foreign) == 1 else f"{len(foreign):,} files or folders"
    return UserError(
        f"--output {output!r} holds {what} of your own ({shown}"
        f"{more}); expected a new or empty folder, for example {output.rstrip('/')}/new: choose "
        "one, or write between them with --overwrite, which removes none of them."
    )
