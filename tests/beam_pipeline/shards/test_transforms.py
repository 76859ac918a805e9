"""`WriteBalancedTFRecord` is a `WriteToTFRecord`: names, and writing again."""

import contextlib
import dataclasses
import itertools
import pathlib

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from beam_pipeline.options import ImageOptions, PlanOptions, ShardOptions
from beam_pipeline.planning.refs import ImageRef, RefBatch, ShardUnit
from beam_pipeline.planning.transforms import PlanShards
from beam_pipeline.shards import transforms
from imageshards import storage
from imageshards.example import decode_example
from imageshards.tfrecord import read_records
from tests.support.builds import class_folders, run_example

pytestmark = pytest.mark.process

SMALL = ShardOptions(image=ImageOptions(height_px=16, width_px=16))


@pytest.fixture(scope="module")
def batches(tmp_path_factory) -> list[RefBatch]:
    """References of 21 pictures of two classes, as a pipeline of one's own may have them."""
    root = class_folders(tmp_path_factory.mktemp("in"), {"cat": 11, "dog": 10})
    paths = sorted(root.glob("*/*.jpg"))
    refs = [ImageRef(path.name, str(path), path.parent.name, "train") for path in paths]
    return [RefBatch(refs[:7]), RefBatch(refs[7:])]


def payloads(path: str) -> list[bytes]:
    return [record.payload for record in read_records(path)]


@pytest.mark.parametrize("suffix", [".tfrecord", ""])
def test_files_have_the_given_names(batches, tmp_path, suffix):
    (tmp_path / "deep").mkdir()
    prefix = f"{tmp_path}/deep/er-"
    write = transforms.WriteBalancedTFRecord(prefix, SMALL, file_name_suffix=suffix)
    options = dataclasses.replace(SMALL, plan=PlanOptions(num_shards={"train": 4}))
    paths = [f"{prefix}train-{index:05d}-of-00004{suffix}" for index in range(4)]
    with beam.Pipeline("FnApiRunner", options=PipelineOptions([])) as pipeline:
        planned = pipeline | beam.Create(batches) | PlanShards(options)
        files = planned.units | write
        assert_that(files, equal_to(paths))
        assert_that(files | transforms.ReadRejects(write), equal_to([]), "no rejects")
    assert sorted(len(payloads(path)) for path in paths) == [5, 5, 5, 6]
    left = {str(p) for p in tmp_path.rglob("*") if p.is_file()}
    assert left == set(paths)  # nothing else, as of temporary folders


def test_a_prefix_may_be_in_the_root():
    places = transforms.WriteBalancedTFRecord("/set-", SMALL).places
    assert places.final_path("train") == "/set-train"


def test_two_runs_with_the_same_options_are_two_runs():
    options = ShardOptions()
    runs = {transforms.WriteBalancedTFRecord("out/set-", options).options.run_id for _ in range(2)}
    assert len(runs) == 2 and "" not in runs and options == ShardOptions()


def test_a_suffix_that_promises_compression_is_refused():
    with pytest.raises(ValueError, match="file_name_suffix received '.tfrecord.gz', of compressed"):
        transforms.WriteBalancedTFRecord("x/", SMALL, file_name_suffix=".tfrecord.gz")


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("overtaken", [False, True])
def test_finalize_write_may_be_repeated_in_any_state(
    batches, tmp_path, monkeypatch, number, overtaken
):
    """After it succeeded, after an error at a file, and while another attempt is under way."""
    (tmp_path / "out-train-00001-of-00002").write_bytes(b"of another job")
    (tmp_path / "out-train-00000-of-00007").write_bytes(b"not of this many shards")
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "out-train-00001-of-00002.tfrecord").write_bytes(b"of another job")
    sink = transforms.WriteBalancedTFRecord(f"{tmp_path}/out-", SMALL)._sink
    temporary, results = sink.initialize_write(), []
    bad = ImageRef("bad.jpg", f"{tmp_path}/none.jpg", "cat", "train")
    for index, batch in enumerate(batches):
        writer = sink.open_writer(temporary, str(index))
        writer.write(ShardUnit("train", index, 2, {"cat": 0, "dog": 1}, [*batch.refs, bad]))
        results.append(writer.close())
    names = [f"out-train-{index:05d}-of-00002" for index in range(2)]
    files = [f"{tmp_path}/{name}" for name in names]
    quarantined = [f"{tmp_path}/quarantine/{name}.tfrecord" for name in names]
    calls, move = itertools.count(), storage.move

    def finalize() -> list[str]:
        return list(sink.finalize_write(temporary, results, sink.pre_finalize(temporary, results)))

    def disturbed(source: str, target: str) -> None:
        if next(calls) == number:
            if not overtaken:
                raise OSError("disturbed")
            finalize()
        move(source, target)

    with monkeypatch.context() as patch, contextlib.suppress(OSError):
        patch.setattr(storage, "move", disturbed)
        # One after the other: the files that were moved before are known.
        patch.setattr(transforms, "map_concurrently", map)
        finalize()
    for _ in range(2):
        assert finalize() == files
        rejects = [found for file in files for found in transforms.rejects_of(file, sink.places)]
        assert [(found.key, found.reason) for found in rejects] == [("bad.jpg", "not_found")] * 2
    assert {str(path) for path in tmp_path.rglob("*") if path.is_file()} == {
        *files, *quarantined, f"{tmp_path}/out-train-00000-of-00007"
    }  # fmt: skip
    assert [len(payloads(file)) for file in files + quarantined] == [7, 14, 1, 1]
    pathlib.Path(files[0]).unlink()
    with pytest.raises(FileNotFoundError):  # a shard that is lost ends the write
        finalize()


def test_the_example_runs(tmp_path, monkeypatch, capfd, caplog):
    class_folders(tmp_path / "photos", {"cat": 20, "dog": 20})
    (tmp_path / "photos" / "cat" / "bad.jpg").write_bytes(b"no picture")
    run_example(transforms.WriteBalancedTFRecord, tmp_path, monkeypatch)
    said = capfd.readouterr().out.splitlines()
    assert "out/set-train-00000-of-00001" in said
    (rejected,) = [line for line in said if line.startswith("Reject(")]
    assert "key='cat/bad.jpg'" in rejected and "reason='not_an_image'" in rejected
    assert "1 shard of out/set-* rejected images, which are in out/quarantine" in caplog.text
    (file,) = (tmp_path / "out" / "quarantine").iterdir()
    (reject,) = map(decode_example, payloads(str(file)))
    assert reject["reason"] == [b"not_an_image"] and reject["image/encoded"] == [b"no picture"]
    files = (tmp_path / path for path in said if path.startswith("out/"))
    assert sum(len(payloads(str(path))) for path in files) == 40
