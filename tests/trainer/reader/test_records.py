"""What a dataset of the reader leaves behind, at its own end and at that of the program."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.support.commands import ROOT
from tests.support.reader_sets import make_set
from tests.support.script import run_script

pytestmark = pytest.mark.process

# What each script begins with: a dataset, its order, and the records of a stream from there.
_HEAD = """
import gc, os, pathlib, sys, threading, time
import numpy as np
import tensorflow as tf
from imageshards import storage
from tests.support.reader_sets import choose, training_data
from trainer.dataset.manifest import load_manifest
from trainer.dataset.spec import ReadOptions
from trainer.reader.order import training_order
from trainer.reader.pieces import PieceReader
from trainer.reader.read_ahead import HeldPieces
from trainer.reader.records import record_batches

subset = choose(load_manifest(sys.argv[1]))
order = training_order(subset, 8, 3)

def batches():
    return record_batches(order, HeldPieces(subset.pieces, PieceReader(subset).read), 8)
"""


def run(script, *arguments):
    return run_script(_HEAD + textwrap.dedent(script), *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records") / "set"
    make_set(folder, [[0, 1, 2] * 20] * 4)
    return folder


@pytest.mark.long
def test_a_deleted_dataset_leaves_nothing_behind(folder, tmp_path):
    """Each reader carries 4 MiB here, so that 40 of them would be seen."""
    script = """
    def count():
        gc.collect()
        pages = int(open("/proc/self/statm").read().split()[1])
        return threading.active_count(), len(os.listdir("/proc/self/fd")), pages * 4096 / 1e6

    def use(number):
        for i in range(number):
            made = batches()
            made.reader.ballast = np.ones(1 << 19)
            assert len(list(made.take(2))) == 2
        options = ReadOptions(2, "pixels", sys.argv[2])
        for i in range(number // 10):
            list(training_data(subset, 8, read_options=options).batches().take(2))
        return count()

    threads, files, megabytes = use(10)
    more_threads, more_files, more_megabytes = use(40)
    assert more_threads <= max(threads, 40) and more_files <= files, (more_threads, more_files)
    assert more_megabytes - megabytes < 100, (megabytes, more_megabytes)
    """
    run(script, folder, tmp_path / "cache")


def test_an_iterator_keeps_a_dataset_that_nobody_holds_and_operations_may_be_deterministic(folder):
    script = """
    tf.config.experimental.enable_op_determinism()
    one = iter(batches().map(lambda part, records, numbers: numbers).prefetch(1))
    gc.collect()
    found = np.concatenate([next(one) for _ in range(60)])
    assert found.tolist() == order.records_at(0, 480).tolist()
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    shared = iter(strategy.distribute_datasets_from_function(lambda context: batches()))
    gc.collect()
    found = np.concatenate([next(shared)[2] for _ in range(60)])
    assert found.tolist() == order.records_at(0, 480).tolist()
    found = list(training_data(subset, 8).batches().take(30))
    assert np.concatenate([one["record"] for one in found]).tolist() == order.records_at(
        0, 240
    ).tolist()
    """
    run(script, folder)


def test_the_end_of_the_program_drops_queued_reads(folder, tmp_path):
    """Reads wait until the program ends; those behind them would be made after its end."""
    script = """
    import trainer.dataset.pieces as pieces
    pieces.PIECE_BYTES = 1000
    subset = choose(load_manifest(sys.argv[1]))
    order = training_order(subset, 8, 3)
    assert len(subset.pieces) > 128
    ending, original = threading.Event(), storage.read_range
    done = open(sys.argv[2], "a", buffering=1)

    def read_range(*asked):
        ending.wait()
        done.write("read\\n")
        time.sleep(1)  # longer than the end of the program takes to drop the others
        return original(*asked)

    storage.read_range = read_range
    threading._register_atexit(ending.set)
    begun = threading.Event()

    def first():
        begun.set()
        next(iter(batches()))

    for _ in range(3):
        threading.Thread(target=first, daemon=True).start()
    begun.wait()
    from trainer.reader import read_ahead
    while read_ahead._threads._work_queue.qsize() < 120:
        time.sleep(0.01)
    """
    run(script, folder, tmp_path / "reads")
    assert len((tmp_path / "reads").read_text().splitlines()) == 32  # one by each thread


@pytest.mark.long
def test_tensorflow_prints_no_error_about_slices_of_slices(folder):
    """Only in a process of its own does TensorFlow show its errors."""
    script = """
    print("begins", file=sys.stderr)
    list(batches().take(20))
    """
    command = [sys.executable, "-c", _HEAD + textwrap.dedent(script), str(folder)]
    shown = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, cwd=ROOT, env=shown, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "begins" in done.stderr and "RefCount" not in done.stderr
