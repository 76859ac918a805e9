"""Processes that see GPUs: those of this machine (`REAL_GPUS=2`), or fake ones.

The fake GPUs are those of `tests/gpu/fake_device`, which `make fake-gpu` builds.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.commands import FAKE_GPU, Command

REAL_GPUS = int(os.environ.get("REAL_GPUS", 0))
ARE_FAKE = not REAL_GPUS

# Takes all but 1 GiB of a GPU's memory, until its input ends.
_HOLDER = """if True:
    import sys, tensorflow as tf
    from tensorflow.python.client import device_lib
    gpu = [one for one in device_lib.list_local_devices() if one.device_type == "GPU"][0]
    with tf.device("GPU:0"):
        held = tf.zeros([gpu.memory_limit - 2**30], tf.uint8)
    print("held", flush=True)
    sys.stdin.read()
"""

needs_gpus = pytest.mark.skipif(
    ARE_FAKE and not any(FAKE_GPU.rglob("*.so")), reason="no fake GPU: make fake-gpu builds it"
)
needs_trace = pytest.mark.skipif(not ARE_FAKE, reason="only the fake GPU writes a trace")


def command(count: int, module: str, *arguments: object, **options: Any) -> Command:
    """Starts `python -m MODULE …`, which sees so many GPUs; options as for `Command`."""
    if REAL_GPUS and count > REAL_GPUS:
        pytest.skip(f"needs {count} GPUs")
    environment: dict[str, Any] = options.pop("environment", {})
    visible = ",".join(map(str, range(count)))
    environment |= {"CUDA_VISIBLE_DEVICES": visible, "FAKE_GPUS": str(count)}
    return Command("gpu", module, *arguments, environment=environment, **options)


def run(count: int, module: str, *arguments: object, **options: Any) -> str:
    """Returns what a command that must succeed prints."""
    done = command(count, module, *arguments, **options).result()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def scenario(count: int, name: str, *arguments: object, **environment: str) -> Any:
    """Returns what a function of `tests.gpu.scenarios` returns, in a process of its own."""
    said = run(count, "tests.gpu.scenarios", name, *arguments, environment=environment)
    return json.loads(said.splitlines()[-1])


def train(count: int, *flags: object, **options: Any) -> str:
    """Runs `imageshards train` on so many GPUs; returns what it prints."""
    said = run(count, "trainer", *flags, "--replicas", count, **options)
    assert f"{count} replica{'s' * (count > 1)} on GPU" in said, said
    return said


@contextlib.contextmanager
def little_memory() -> Iterator[dict[str, str]]:
    """Yields the environment of commands whose GPU has little memory left.

    A fake GPU is made small. Of a real one, another process holds nearly all memory.
    """
    if ARE_FAKE:
        yield {"FAKE_GPU_MEMORY_MB": "96"}
        return
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()  # type: ignore[union-attr]
        yield {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        holder.communicate()
