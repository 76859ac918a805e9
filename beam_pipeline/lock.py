"""One job per output folder."""

from __future__ import annotations

import fcntl
import os
from typing import Any

from beam_pipeline.errors import OutputError, UserError


class OutputLock:
    """Holds `path` for this process; the kernel lets go when the process ends, however.

    Raises:
        UserError: Another job holds it.
        OutputError: The file cannot be made.
    """

    def __init__(self, path: str):
        self._path = path

    def __enter__(self) -> OutputLock:
        folder = os.path.dirname(self._path)
        try:
            os.makedirs(folder, exist_ok=True)
            self._file: Any = open(self._path, "a+", encoding="utf-8")
        except OSError as e:
            raise OutputError(
                f"--output {os.path.dirname(folder)!r} cannot be written ({e.strerror}); choose "
                "another "
                "folder or mend its rights."
            ) from e
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise UserError(
                f"--output {os.path.dirname(folder)!r} is in use by another job (process "
                f"{holder}); wait "
                "for it to end, or choose another folder."
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
