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
from tests.support import builds

pytestmark = pytest.mark.process

# Their decoder is that of tests/support/dangerous_pictures.
KILLING = {"cat/segfault.jpg": 61, "dog/abort.jpg": 62, "dog/killed.jpg": 63}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> pathlib.Path:
    root = builds.class_folders(tmp_path_factory.mktemp("in") / "photos", {"cat": 12, "dog": 12})
    for name, width in KILLING.items():
        (root / name).write_bytes(builds.jpeg(1, width))
    return root


@pytest.fixture(autouse=True)
def dangerous_decoder(monkeypatch):
    """In processes that are started from now on, as in workers of a cluster."""
    folder = pathlib.Path(__file__).parents[1] / "support" / "dangerous_pictures"
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.slow
def test_a_build_names_them_and_all_others_become_records(photos, tmp_path, capfd):
    flags = ["--image_size", "32", "--splits", "train=1", "--no_report", "--num_shards", "3"]
    flags += ["--max_reject_fraction", "0.3"]
    several = builds.build_set(photos, tmp_path / "several", *flags)
    left_out = {key: row["reason"] for key, row in builds.rejects_of(several).items()}
    assert left_out == dict.fromkeys(KILLING, "decoder_crashed")
    assert builds.quarantined(several) == {key: [(photos / key).read_bytes()] for key in KILLING}
    found = builds.manifest(several)
    assert (found["listed"], found["rejects"]) == (27, {"decoder_crashed": 3})
    assert found["splits"]["train"]["num_records"] == 24
    said = capfd.readouterr().err
    for key, number in zip(KILLING, ("11 (SIGSEGV)", "6 (SIGABRT)", "9 (SIGKILL)"), strict=True):
        assert f"was killed by signal {number} while it decoded '{photos / key}'" in said
    assert "memory" not in said


@pytest.mark.long
def test_a_custom_pipeline_survives_dangerous_pictures(photos, tmp_path, monkeypatch):
    """Its pictures are decoded outside of the process that runs it, too."""
    # Processes that another test's pipeline has started have the usual decoder.
    monkeypatch.setattr(process_pool, "_pools", [])
    refs = [ImageRef(p.name, str(p), p.parent.name, "train") for p in sorted(photos.glob("*/*"))]
    options = ShardOptions(image=ImageOptions(32, 32), plan=PlanOptions(num_shards={"train": 2}))
    with beam.Pipeline("FnApiRunner", options=PipelineOptions([])) as pipeline:
        planned = pipeline | beam.Create([RefBatch(refs)]) | PlanShards(options)
        planned.units | WriteBalancedTFRecord(f"{tmp_path}/set/", options)
    found = [row for path in (tmp_path / "set").glob("train-*") for row in builds.examples(path)]
    assert len(found) == 24
    quarantine = (tmp_path / "set" / "quarantine").iterdir()
    rejected = [row for path in quarantine for row in builds.examples(path)]
    assert [reject["reason"] for reject in rejected] == [[b"decoder_crashed"]] * 3
