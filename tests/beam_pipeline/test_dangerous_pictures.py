"""Pictures that kill or hang the process that decodes them: found, named, set aside, anywhere."""

import pathlib

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline.images import process_pool
from beam_pipeline.options import ImageOptions, PlanOptions, ShardOptions
from beam_pipeline.planning.refs import ImageRef, RefBatch
from beam_pipeline.planning.transforms import PlanShards
from beam_pipeline.shards.transforms import WriteBalancedTFRecord
from imageshards.example import Values, decode_example
from imageshards.tfrecord import read_records
from tests.support.builds import build, class_folders, jpeg, manifest, quarantined, rejects_of

pytestmark = pytest.mark.process

# Their decoder is that of tests/support/dangerous_pictures.
KILLING = {"cat/segfault.jpg": 61, "dog/abort.jpg": 62, "dog/killed.jpg": 63}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> pathlib.Path:
    root = class_folders(tmp_path_factory.mktemp("in") / "photos", {"cat": 12, "dog": 12})
    for name, width in KILLING.items():
        (root / name).write_bytes(jpeg(1, width))
    return root


@pytest.fixture(autouse=True)
def dangerous_decoder(monkeypatch):
    """In processes that are started from now on, as in workers of a cluster."""
    folder = pathlib.Path(__file__).parents[1] / "support" / "dangerous_pictures"
    monkeypatch.setenv("PYTHONPATH", str(folder))


def build_of(photos, output, *more: str) -> int:
    flags = ["--image_size", "32", "--splits", "train=1", "--no_report", *more]
    return build("--input", photos, "--output", output, *flags)


@pytest.mark.slow
def test_a_build_names_them_keeps_their_bytes_and_all_others_become_records(
    photos, tmp_path, capfd
):
    several = tmp_path / "several"
    assert build_of(photos, several, "--num_shards", "3", "--max_reject_fraction", "0.3") == 0
    left_out = {key: row["reason"] for key, row in rejects_of(several).items()}
    assert left_out == dict.fromkeys(KILLING, "decoder_crashed")
    assert quarantined(several) == {key: [(photos / key).read_bytes()] for key in KILLING}
    found = manifest(several)
    assert (found["listed"], found["rejects"]) == (27, {"decoder_crashed": 3})
    assert found["splits"]["train"]["num_records"] == 24
    said = capfd.readouterr().err
    for key, number in zip(KILLING, ("11 (SIGSEGV)", "6 (SIGABRT)", "9 (SIGKILL)"), strict=True):
        assert f"was killed by signal {number} while it decoded '{photos / key}'" in said
    assert "memory" not in said


def test_the_next_run_decodes_crashed_pictures_again(photos, tmp_path, monkeypatch):
    output = tmp_path / "set"
    assert build_of(photos, output, "--num_shards", "1") == 2
    monkeypatch.delenv("PYTHONPATH")
    assert build_of(photos, output, "--num_shards", "1") == 0
    assert manifest(output)["splits"]["train"]["num_records"] == 27


def read(path: pathlib.Path) -> list[dict[str, Values]]:
    return [decode_example(record.payload) for record in read_records(str(path))]


def test_a_custom_pipeline_survives_dangerous_pictures(photos, tmp_path, monkeypatch):
    """Its pictures are decoded outside of the process that runs it, too."""
    # Processes that another test's pipeline has started have the usual decoder.
    monkeypatch.setattr(process_pool, "_pools", [])
    refs = [ImageRef(p.name, str(p), p.parent.name, "train") for p in sorted(photos.glob("*/*"))]
    options = ShardOptions(
        image=ImageOptions(height_px=32, width_px=32), plan=PlanOptions(num_shards={"train": 2})
    )
    with beam.Pipeline("FnApiRunner", options=PipelineOptions([])) as pipeline:
        batches = pipeline | beam.Create([RefBatch(refs)])
        planned = batches | PlanShards(options)
        planned.units | WriteBalancedTFRecord(f"{tmp_path}/set/", options)
    found = [record for path in (tmp_path / "set").glob("train-*") for record in read(path)]
    assert len(found) == 24
    rejected = [r for path in (tmp_path / "set" / "quarantine").iterdir() for r in read(path)]
    assert [reject["reason"] for reject in rejected] == [[b"decoder_crashed"]] * 3
