"""Train/serve skew, measured: the same files through a build and training, and when served."""

import csv
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import imageshards as ims
from tests.support.commands import ForkedBuild
from tests.support.pictures import saved, scene
from tests.support.served_models import picture_reader
from tests.support.served_models import saved as saved_model
from trainer import predict
from trainer.dataset.spec import ModelCard
from trainer.training.output_folder import copy_transform

pytestmark = pytest.mark.slow

NUM_PHOTOS = 24
COLUMNS = "age:float:zscore,meta:float[3],tokens:int[],caption:string"
RECORD_PX = 128


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], ims.Data]:
    folder = tmp_path_factory.mktemp("skew")
    draw = np.random.default_rng(0)
    photos = []
    for i in range(NUM_PHOTOS + 16):
        exif = Image.Exif()
        if i >= NUM_PHOTOS:  # each orientation twice, wide and upright
            exif[0x0112] = i % 8 + 1
        sides = sorted(map(int, draw.integers(90, 500, 2)), reverse=i % 16 < 8)
        photos.append(folder / f"{i:02}.jpg")
        photos[-1].write_bytes(saved(scene(*sides), quality=90, exif=exif))
    rows = [
        {
            "image": str(path), "key": path.name, "label": "dog" if i % 2 else "cat",
            "age": float(draw.normal(40, 12)), "meta": draw.normal(0, 1, 3).tolist(),
            "tokens": draw.integers(1, 40, draw.integers(0, 6)).tolist(), "caption": path.name,
        }
        for i, path in enumerate(photos)
    ]  # fmt: skip
    (folder / "photos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = ForkedBuild(
        "--input", folder / "photos.jsonl", "--output", folder / "set", "--key_column", "key",
        "--columns", COLUMNS, "--image_size", RECORD_PX, "--splits", "train=1",
        "--num_shards", 2, "--direct_num_workers", 2,
    ).result()  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    return rows, ims.open(folder / "set")


def keyed_records(data: ims.Data, evaluation: ims.EvaluationData) -> dict[str, dict[str, Any]]:
    """What the trainer feeds its model with, by the key of the photo."""
    names = data.source("train", features=["image/filename"])
    keys = [record["image/filename"].decode() for record in names]
    return {
        keys[record]: {name: value[i] for name, value in batch["inputs"].items()}
        for batch in evaluation.batches().as_numpy_iterator()
        for i, record in enumerate(batch["record"])
        if record >= 0
    }


def files(rows: list[dict[str, Any]]) -> Any:
    return tf.constant([pathlib.Path(row["image"]).read_bytes() for row in rows])


@pytest.mark.parametrize("side_px", [RECORD_PX, 96])
@pytest.mark.one_row
def test_pixels_are_those_of_training(built: Any, side_px: int) -> None:
    rows, data = built
    records = keyed_records(data, data.evaluation(batch_size=16, split="train", image_size=side_px))
    trained = np.stack([records[row["key"]]["image"] for row in rows]).astype(int)
    reader = picture_reader(data.dataset.image, (side_px, side_px))
    served = tf.function(reader, autograph=False)(files(rows))
    off = np.abs(served.numpy() - trained)
    # What is left: sums in 32 bits, which fall on the other side of a half now and then.
    assert off.mean() < 0.05 and off.max() <= 16


@pytest.mark.long
def test_raw_columns_become_what_the_records_hold(built: Any, tmp_path: pathlib.Path) -> None:
    rows, data = built
    names = ["image", "age", "meta", "tokens"]
    evaluation = data.evaluation(batch_size=16, split="train", inputs=names)
    model = saved_model(tmp_path, ModelCard(data.classes, evaluation.model_inputs))
    copy_transform(data.dataset, str(tmp_path))
    output = ims.export(tmp_path, tmp_path / "served")
    serve = tf.saved_model.load(output).signatures["serving_default"]
    # Neither the label nor the caption feeds the model: a request need not bring them.
    assert set(serve.structured_input_signature[1]) == {"image_bytes", "age", "meta", "tokens"}
    found = serve(
        image_bytes=files(rows),
        age=tf.constant([row["age"] for row in rows]),
        meta=tf.constant([row["meta"] for row in rows]),
        tokens=tf.ragged.constant([row["tokens"] for row in rows], tf.int64).to_tensor(0),
    )["probabilities"]
    records = keyed_records(data, evaluation)
    for row, probabilities in zip(rows, found.numpy(), strict=True):
        one = {name: value[None] for name, value in records[row["key"]].items()}
        expected = tf.nn.softmax(model(one)).numpy()[0]
        np.testing.assert_allclose(probabilities, expected, atol=1e-3, err_msg=row["key"])
    # The raw columns of a table give what the records of its dataset give.
    tables = {}
    for name, flags in (
        ("table", ["--input", rows[0]["image"].replace("00.jpg", "photos.jsonl")]),
        ("split", ["--data", data.dataset.data, "--split", "train"]),
    ):
        output = f"{tmp_path}/{name}.csv"
        assert predict.main(["--model_path", str(tmp_path), *flags, "--output", output]) == 0
        with open(output, newline="") as file:
            tables[name] = {row["key"]: row for row in csv.DictReader(file)}
    for row, probabilities in zip(rows, found.numpy(), strict=True):
        for table in tables.values():
            cells = [float(table[row["key"]][name]) for name in data.classes]
            np.testing.assert_allclose(cells, probabilities, atol=1e-3, err_msg=row["key"])
    ages = [float(record["age"]) for record in records.values()]
    assert abs(np.mean(ages)) < 1e-3 and np.std(ages) == pytest.approx(1, abs=1e-3)
