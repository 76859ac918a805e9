"""Writes predictions as a CSV file; a killed command goes on behind its last whole batch.

Until the file is complete, `PATH.part` has the rows, and `PATH.part.json` says what they were made
of. After a kill, batches begin at the same pictures, so the finished file has the same bytes.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from imageshards import storage
from imageshards.commands.output_folder import output_errors
from imageshards.errors import UserError
from imageshards.progress import ProgressLine, rate_line
from trainer.dataset.spec import ModelCard

PART, STATE = ".part", ".part.json"
# Names of columns besides the outputs; the last one has the reason if there is no prediction.
_ANSWERS = {"class": ["class"], "labels": ["labels"], "values": []}
_ERROR = "error"


def columns_of(card: ModelCard, key_name: str) -> list[str]:
    """Returns the header: the key, the class or labels, a column for each output, and the error.

    An output whose name another column has gets the prefix `output_`.
    """
    others = [key_name, *_ANSWERS[card.target], _ERROR]
    outputs = [f"output_{name}" if name in others else name for name in card.names]
    return [*others[:-1], *outputs, _ERROR]


def cells_of(card: ModelCard, key: str, found: Sequence[float], error: str) -> list[str]:
    """Returns the cells of a row; probabilities and values have all digits of float32."""
    width = len(card.names) + len(_ANSWERS[card.target])
    if error:
        return [key, *[""] * width, error]
    answers: list[str] = []
    if card.target == "class":
        answers = [card.classes[int(np.argmax(found))]]
    elif card.target == "labels":
        # A separator must not be part of a label.
        between = "|" if any(" " in name for name in card.classes) else " "
        shares = zip(card.classes, found, strict=True)
        answers = [between.join(name for name, share in shares if share >= 0.5)]
    return [key, *answers, *(str(np.float32(one)) for one in found), ""]


def check_new(path: str) -> None:
    """Refuses an output that exists, or that is no local CSV file."""
    why = expected = ""
    if not storage.is_local(path) or not path.lower().endswith(".csv"):
        why, expected = "", "a local file ending in .csv"
    elif os.path.lexists(path):
        why, expected = ", which exists already", "a new file"
    if expected:
        raise UserError(argument="output", received=f"{path!r}{why}", expected=expected)


def write_predictions(
    path: str,
    header: Sequence[str],
    made_of: Mapping[str, Any],
    total: int,
    rows_from: Callable[[int], Iterable[Sequence[str]]],
) -> int:
    """Writes the rows that `path` lacks; returns how many of all rows have an error.

    Args:
        path: The file, which has its name when it is complete.
        header: As `columns_of` returns it.
        made_of: What the rows depend on, as JSON values, with the `batch_size`.
        total: Number of rows.
        rows_from: Returns the rows from a number on, the first of a batch.

    Raises:
        UserError: `path` belongs to another model or other pictures, another process writes it, or
            it cannot be written.
    """
    batch_size, begun = made_of["batch_size"], time.monotonic()
    with output_errors(storage.parent_of(path) or ".", storage.name_of(path)):
        os.makedirs(storage.parent_of(path) or ".", exist_ok=True)
        with open(path + PART, "a+b") as part:
            done, broken = before, _ = _resume(path, part, made_of, batch_size)
            text = io.TextIOWrapper(part, "utf-8", "backslashreplace", newline="")
            rows = csv.writer(text, lineterminator="\n")
            if not part.tell():
                rows.writerow(header)

            def line() -> str:
                seconds = time.monotonic() - begun
                return "predicted " + rate_line(done, total, "pictures", seconds, before)

            with ProgressLine(line):
                for row in rows_from(before):
                    rows.writerow(row)
                    done, broken = done + 1, broken + bool(row[-1])
                    if done % batch_size == 0:
                        text.flush()
            text.flush()
            os.fsync(part.fileno())
            os.rename(path + PART, path)
        storage.delete([path + STATE])
    return broken


def _resume(
    path: str, part: IO[bytes], made_of: Mapping[str, Any], batch_size: int
) -> tuple[int, int]:
    """Keeps whole batches of an earlier command; returns how many rows, and how many errors."""
    try:
        fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            argument="output",
            received=f"{path!r}, which another process writes",
            expected="another file",
        ) from None
    state = path + STATE
    if not storage.exists(state):
        part.truncate(0)
        storage.write(state, json.dumps(made_of))
    elif (other := json.loads(storage.read(state))) != made_of:
        names = ", ".join(name for name in made_of if other.get(name) != made_of[name])
        raise UserError(
            argument="output",
            received=f"{path!r}, which was begun with another {names}",
            expected="the same",
            remedy=f"name another file, or delete {path + PART} and {state}",
        )
    part.seek(0)
    sizes, broken = [], []
    for row in _whole_rows(part):
        sizes.append(len(row))
        # Only the last cell of a row without an error is empty.
        broken.append(not row.endswith(b",\n"))
    kept = max(0, len(sizes) - 1) // batch_size * batch_size
    part.truncate(sum(sizes[: kept + 1]) if sizes else 0)
    part.seek(0, os.SEEK_END)
    return kept, sum(broken[1 : kept + 1])


def _whole_rows(file: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the header and rows; a row with an odd number of quotes goes on in the next line."""
    row = b""
    for line in file:
        row += line
        if row.endswith(b"\n") and row.count(b'"') % 2 == 0:
            yield row
            row = b""
