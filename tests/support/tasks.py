"""What processes of a pool, ours or Beam's, are asked to do, in a module that they can import."""

import os
import pathlib
import signal
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from imageshards import storage
from imageshards.errors import Arg, ImageError
from tests.support.commands import wait_until


class Ref(NamedTuple):
    place: str


class Batch(NamedTuple):
    refs: list[Ref]


PICTURES = Batch([Ref(f"/photos/{i}.jpg") for i in range(6)])


def double(batch: Batch, value: int, watch) -> int:
    watch.add(1, 100, 0)
    return 2 * value


def loaded(batch: Batch, names: list[str], watch) -> set[str]:
    return sys.modules.keys() & {*names}


def die_until(batch: Batch, marker: str, kills: int, value: int, watch) -> int:
    """Kills its process, so many times, at no picture."""
    path = pathlib.Path(marker)
    watch.add(1, 100, 0)
    with open(path, "ab") as file:
        file.write(b".")
    if path.stat().st_size <= kills:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * value


def decode(batch: Batch, deeds: Mapping[int, str], log: str, watch) -> list[tuple[int, str, str]]:
    """Meets the pictures of a batch in turn, some of which do something; tells what was left out.

    Deeds are the name of a signal, `hang`, `once` (a kill the first time that it is met), and a
    path: a kill while that file is there, as by the kernel while another process has the memory.
    """
    left_out = []
    for number in range(len(batch.refs)):
        try:
            with watch.picture(number):
                with open(log, "a") as file:
                    file.write(f"{number} ")
                _do(deeds.get(number, ""), pathlib.Path(f"{log}-{number}"))
        except ImageError as e:
            left_out.append((number, e.code, e.message))
        watch.add(1, 100, 0)
    return left_out


def _do(deed: str, marker: pathlib.Path) -> None:
    if deed == "hang":
        time.sleep(600)
    if deed == "once" and not marker.exists():
        marker.touch()
        deed = "SIGKILL"
    if os.path.isabs(deed) and os.path.exists(deed):
        deed = "SIGKILL"
    if deed.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[deed])


def decode_until(batch: Batch, decoding: str, go_on: str, watch) -> None:
    """Decodes a picture, with a file that is there meanwhile, until another file is there."""
    with watch.picture(0):
        pathlib.Path(decoding).touch()
        wait_until(pathlib.Path(go_on).exists)
        os.unlink(decoding)


def wait_for(batch: Batch, begun: str, go_on: str, watch) -> int:
    """Waits for a file to appear; gives out how many times it was begun."""
    with open(begun, "ab") as file:
        file.write(b".")
    wait_until(pathlib.Path(go_on).exists)
    return pathlib.Path(begun).stat().st_size


def settings(batch: Batch, variable: str, watch) -> tuple[int, str | None, object]:
    """Its process, a variable of the environment, and the settings of stores."""
    return os.getpid(), os.environ.get(variable), storage.settings()


def name_of_an_option(batch: Batch, watch) -> str:
    return str(Arg("seed"))


def write(batch: Batch, path: str, watch) -> None:
    storage.write(path, b"1")


def die_writing(batch: Batch, path: str, watch) -> None:
    with storage.AtomicFile(path) as file, open(file.local_path, "wb") as begun:
        begun.write(b"a part of it")
        begun.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def die(batch: Batch, number: int, watch) -> None:
    os.kill(os.getpid(), number)


def fail(batch: Batch, watch) -> None:
    raise ValueError("no such luck")


class UnpicklableError(Exception):
    def __init__(self, first: str, second: str):
        super().__init__(f"{first} {second}")


def fail_without_pickle(batch: Batch, watch) -> None:
    raise UnpicklableError("two", "arguments")
