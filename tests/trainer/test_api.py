import contextlib
import dataclasses
import inspect
import itertools
import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import imageshards as ims
from imageshards.tfrecord import read_records
from tests.support.errors import refused
from tests.support.reader_sets import CLASSES, SIDE_PX, make_set
from tests.support.trainer_data import assert_same, edit_manifest, make_dataset, write_shard
from trainer.api import Data
from trainer.config import ReadConfig
from trainer.dataset.manifest import load_manifest

# Two shards of 5 and 6 records: 4 of the class 0, 3 of 1, 4 of 2.
LABELS = [[0, 1, 2, 0, 1], [2, 0, 1, 2, 2, 0]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Records that tell their number in every feature, to train on and to validate."""
    folder = tmp_path_factory.mktemp("data")
    train = make_set(folder, LABELS).splits["train"]
    told = json.loads((folder / "manifest.json").read_text())
    payloads = [record.payload for record in read_records(train.paths[1])]
    name = "validation-00000"
    entry = told["splits"]["train"]["shards"][1]
    written = write_shard(folder, "validation", name, payloads, told["features"], CLASSES)
    validation = {"num_records": entry["num_records"], "shards": [entry | written]}
    edit_manifest(folder, splits=told["splits"] | {"validation": validation})
    return Data(ReadConfig(str(folder)), load_manifest(str(folder)))


def flip_and_soften(images: Any, labels: Any, seeds: Any) -> tuple[Any, Any]:
    """A user's augmentation: flipped at random, scaled, labels as shares of classes."""
    # Only where AutoGraph converts the function does Python's `if` work here.
    if tf.reduce_all(seeds >= 0):
        images = tf.map_fn(
            lambda one: tf.image.stateless_random_brightness(one[0], 0.5, one[1]),
            (images, seeds),
            fn_output_signature=tf.TensorSpec(images.shape[1:], tf.uint8),
        )
    return tf.cast(images, tf.float32) / 255, tf.one_hot(labels, len(CLASSES))


def tell_seeds(images: Any, labels: Any, seeds: Any) -> tuple[Any, Any]:
    return images, seeds


def taken(batches: Any, count: int) -> list[Any]:
    return list(batches.take(count).as_numpy_iterator())


# An epoch ends within the third batch. What augments takes long to build.
@pytest.mark.parametrize(
    ("asked", "starts"),
    [
        ({"augment": "none"}, (1, 2, 3, 5)),
        ({"augment": "none", "balance": "sampling", "where": "age>=1"}, (2, 3)),
        ({"augment": "light"}, (1,)),
        ({"augment": "light", "augment_on": "device"}, (1,)),
        ({"augment": flip_and_soften}, (2,)),
    ],
)
@pytest.mark.one_row
def test_stream_from_any_step_starts_with_the_batch_of_that_step(data, asked, starts):
    train = data.train(batch_size=4, seed=3, **asked)
    whole = list(itertools.islice(train.as_numpy(), starts[-1] + 2))
    for start in starts:
        assert_same(list(itertools.islice(train.as_numpy(start), 2)), whole[start : start + 2])
    # Another seed gives another order.
    first, other = (taken(dataclasses.replace(train, seed=n).dataset(), 1)[0][0] for n in (3, 4))
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("augment", ["light", flip_and_soften], ids=["level", "function"])
@pytest.mark.one_row
def test_processes_get_their_parts_of_every_batch(data: Data, augment: Any) -> None:
    made = data.train(batch_size=6, seed=2, augment=augment)
    whole = list(itertools.islice(made.as_numpy(4), 3))
    for k in range(3):
        own = itertools.islice(made.as_numpy(4, process_index=k, process_count=3), 3)
        for batch, part in zip(whole, own, strict=True):
            for values, mine in zip(batch, part, strict=True):
                np.testing.assert_array_equal(mine, values[2 * k : 2 * k + 2])
    with refused("batch_size", "6", "4 processes"):
        made.dataset(process_count=4)
    with refused("process_index", "3"):
        made.dataset(process_index=3, process_count=3)
    with refused("process_count", "tokens", "sequence_length"):
        data.train(batch_size=6, inputs=["image", "tokens"]).dataset(process_count=3)
    padded = data.train(batch_size=6, inputs=["image", "tokens"], sequence_length=4)
    assert next(padded.as_numpy(process_count=3))[0]["tokens"].shape == (2, 4)


def test_every_shape_is_static_but_for_a_short_last_batch(data: Data) -> None:
    train = data.train(batch_size=4, image_size=(6, 5))
    assert train.image_shape == (6, 5, 3)
    full, short = (data.evaluation(batch_size=n, image_size="6x5") for n in (3, 4))
    for described, size in ((train, 4), (full, 3), (short, None)):
        image, label = described.dataset().element_spec
        assert (image.shape.as_list(), image.dtype) == ([size, 6, 5, 3], tf.uint8)
        assert (label.shape.as_list(), label.dtype) == ([size], tf.int64)
    options = train.dataset().options()
    off = tf.data.experimental.AutoShardPolicy.OFF
    assert options.deterministic and options.experimental_distribute.auto_shard_policy == off


@pytest.mark.parametrize("asked", [{}, {"inputs": ["image", "age"]}, {"augment_on": "device"}])
@pytest.mark.one_row
def test_the_spec_is_known_without_tracing_augmentation(data: Data, asked: Any) -> None:
    train = data.train(batch_size=4, image_size=5, augment="strong", **asked)
    assert train.element_spec == train.dataset().element_spec


def test_balance_weighs_or_repeats_and_leaves_no_weight_to_apply_again(data: Data) -> None:
    wanted = data.train(batch_size=11, augment="none").class_weight
    assert wanted == pytest.approx({0: 11 / 12, 1: 11 / 9, 2: 11 / 12}) and wanted is not None
    weighed = data.train(batch_size=11, augment="none", balance="weights")
    _, labels, weights = taken(weighed.dataset(), 1)[0]
    assert list(weights) == pytest.approx([wanted[i] for i in labels])
    repeated = data.train(batch_size=12, augment="none", balance="sampling")
    assert repeated.num_records == 12 and repeated.steps_per_epoch == 1
    assert list(np.bincount(taken(repeated.dataset(), 1)[0][1])) == [4, 4, 4]
    assert weighed.class_weight is None is repeated.class_weight


@pytest.mark.parametrize(
    ("asked", "gives_weights"),
    [
        ({}, False),
        ({"augment": "strong"}, False),
        ({"augment": flip_and_soften, "inputs": ["image"]}, False),
        ({"balance": "sampling"}, False),
        ({"balance": "weights"}, True),
        ({"sample_weight": "age"}, True),
        ({"augment": flip_and_soften, "balance": "weights"}, True),
        ({"skip_broken": 1}, True),
    ],
)
@pytest.mark.one_row
def test_batches_have_weights_only_where_some_may_differ_from_1(data, asked, gives_weights):
    opened = dataclasses.replace(data.config, skip_broken=asked.get("skip_broken", 0))
    how = {name: value for name, value in asked.items() if name != "skip_broken"}
    train = dataclasses.replace(data, config=opened).train(batch_size=4, image_size=6, **how)
    assert train.gives_weights == gives_weights
    ((_, _, *weights),) = taken(train.dataset(), 1)
    assert [weight.shape for weight in weights] == [(4,)] * gives_weights
    assert len(train.element_spec) == 2 + gives_weights
    evaluation = data.evaluation(batch_size=4, sample_weight=asked.get("sample_weight"))
    assert evaluation.gives_weights == ("sample_weight" in asked)
    assert len(next(evaluation.as_numpy())) == 2 + evaluation.gives_weights


def test_a_function_gets_what_evaluation_sees_and_seeds_of_their_own(data: Data) -> None:
    def streams(seed: int) -> Any:
        return data.train(batch_size=4, image_size=6, augment=tell_seeds, seed=seed)

    plain = data.train(batch_size=4, image_size=6, augment="none", seed=3)
    told = taken(streams(3).dataset(), 6)
    for (images, seeds), (expected, _) in zip(told, taken(plain.dataset(), 6), strict=True):
        assert_same(images, expected)
        assert seeds.shape == (4, 2) and seeds.dtype == np.int64
    numbers = np.concatenate([seeds for _, seeds in told])
    assert len({*numbers.ravel()}) == numbers.size and (numbers >= 0).all()
    assert not np.array_equal(taken(streams(4).dataset(), 1)[0][1], told[0][1])


def test_a_function_s_pictures_and_labels_are_taken_as_they_are(data: Data) -> None:
    train = data.train(batch_size=4, augment=flip_and_soften, balance="weights")
    specs = train.dataset().element_spec
    assert [one.shape for one in specs] == [[4, SIDE_PX, SIDE_PX, 3], [4, 3], [4]]
    assert {one.dtype for one in specs} == {tf.float32}
    _, labels, weights = taken(train.dataset(), 1)[0]
    known = data.train(batch_size=4).class_weight or {}
    assert list(weights) == pytest.approx([known[i] for i in labels.argmax(1)])


def test_a_function_that_is_no_pure_one_of_static_shapes_is_refused(data: Data) -> None:
    import keras

    flip, with_state = tf.image.random_flip_left_right, keras.layers.RandomFlip(seed=1)
    # What a wrong function returns for (images, labels), and what the error says.
    wrong: list[tuple[Any, str]] = [
        (lambda a, b, _: (tf.map_fn(flip, a), b), "RandomUniform"),
        (lambda a, b, _: (with_state(a), b), "Assign"),
        (lambda a, b, _: a, "two values"),
        (lambda a, b, _: (a[:2], b), "images of shape (2, 8, 8, 3)"),
        (lambda a, b, _: (a, tf.boolean_mask(b, b >= 0)), "labels of shape (None,)"),
    ]
    for function, said in wrong:
        with refused("augment", "<lambda>", said):
            data.train(batch_size=4, augment=function).dataset()


def test_errors_name_the_argument(data, tmp_path):
    folder = make_dataset(tmp_path / "d", {"train": 3}, num_shards=1, size_px=((8, 8),))
    opened = ims.open(folder)
    (folder / "train-00000-of-00001.tfrecord").unlink()

    def train(**asked: Any) -> Any:
        return lambda: data.train(**{"batch_size": 4} | asked)

    calls: list[tuple[str, str, Any]] = [
        ("batch_size", "11 records", train(batch_size=12)),
        ("batch_size", "for example 4, or an ims.Augment", train(batch_size=3, augment="strong")),
        ("mixup", "0.2, but pairs", train(augment=ims.Augment(mixup=0.2), inputs=["image", "age"])),
        ("cutmix", "1, but pairs", train(augment=ims.Augment(cutmix=1), target=None)),
        ("augment_on", "'device'", train(augment=tell_seeds, augment_on="device")),
        ("image_size", "'2x3x4'", train(image_size=(2, 3, 4))),
        ("classes", "[1]", train(classes=[1])),
        ("target_kind", "'number'", train(target="number", target_kind="number")),
        ("where", "'age'", train(where="age")),
        ("inputs", "'age'", train(inputs=["age"])),
        ("data", "build --input PHOTOS --output FOLDER", lambda: ims.open(tmp_path / "absent")),
        ("path", "None", lambda: ims.open(None)),  # type: ignore[arg-type]
        ("start_step", "-1", lambda: data.train(batch_size=4).dataset(-1)),
        ("split", "'x'", lambda: data.evaluation(batch_size=2, split="x")),
        ("data", "is missing", lambda: opened.evaluation(batch_size=2, split="train")),
        ("data", "is missing", lambda: opened.train(batch_size=2)),
    ]
    for argument, word, call in calls:
        with refused(argument, word):
            call()


# A user may give any of these by mistake.
ODD = (
    None, True, 2.5, -1, np.int64(2), np.float32(2.5), "x", b"x", ["x"], [1], (None,), {"x": 1},
    {"x"}, np.array(["x"]), np.array(2), object(),
)  # fmt: skip


@pytest.mark.parametrize("method", ["open", "train", "evaluation", "source", "index"])
def test_a_value_of_any_type_is_taken_or_refused_in_a_sentence(data, method):
    call = ims.open if method == "open" else getattr(data, method)
    needed = {"open": {"path": data.config.data}, "source": {"split": "train"}, "index": {}}
    base: dict[str, Any] = needed.get(method, {"batch_size": 2})
    for name, value in itertools.product(inspect.signature(call).parameters, ODD):
        with contextlib.suppress(ims.UserError):
            call(**base | {name: value})


@pytest.fixture(scope="module")
def folds(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Three splits, whose records have names of their own."""
    folder = tmp_path_factory.mktemp("folds")
    return ims.open(make_dataset(folder, {"fold0": 7, "fold1": 8, "fold2": 6}, size_px=((8, 8),)))


@pytest.mark.long
def test_several_splits_are_read_as_one_in_any_order_of_their_names(folds, tmp_path):
    train = folds.train(batch_size=7, split=["fold2", "fold1"], augment="none")
    assert (train.steps_per_epoch, train.num_records) == (2, 14)
    assert train.class_weight == pytest.approx({0: 14 / 15, 1: 14 / 15, 2: 14 / 12})
    rows = folds.index(["fold1", "fold2"], ["split", "label"])
    assert rows["split"].to_pylist() == ["fold1"] * 8 + ["fold2"] * 6
    source = folds.source(["fold2", "fold1"], features=["image/class/label"])
    assert [one["image/class/label"] for one in source] == rows["label"].to_pylist()

    def epoch(data: Any) -> list[int]:
        batches = itertools.islice(data.batches().as_numpy_iterator(), 2)
        return [int(one) for batch in batches for one in batch["record"]]

    assert sorted(epoch(train)) == [*range(14)] != epoch(train)
    assert {record < 8 for record in epoch(train)[:7]} == {True, False}  # a batch has both splits
    again = folds.train(batch_size=7, split=("fold1", "fold2"), augment="none")
    assert_same(taken(train.dataset(1), 2), taken(again.dataset().skip(1), 2))
    assert again.identity == train.identity
    cache = {"cache": "pixels", "cache_folder": tmp_path}
    cached = folds.train(batch_size=7, split=["fold1", "fold2"], augment="none", **cache)
    assert_same(taken(cached.dataset(), 2), taken(train.dataset(), 2))
    measured = folds.evaluation(batch_size=7, split=["fold0", "fold2"])
    labels = [label for _, batch in measured.dataset() for label in batch.numpy()]
    assert (len(labels), measured.subset.split.name) == (13, "fold0,fold2")


@pytest.mark.parametrize(
    ("split", "word"),
    [
        (["fold1", "x"], "some of fold0, fold1, fold2, not 'x'"),
        (["fold1", "fold1"], "each split once"),
        ([], "one of fold0"),
        ([1], "texts, in a list"),
    ],
)
def test_wrong_lists_of_splits_are_refused(folds, split, word):
    for call in (folds.train, folds.evaluation):
        with refused(None, "split received", word):
            call(batch_size=2, split=split)
    with refused("split", word):
        folds.index(split)


@pytest.mark.parametrize("asked", [{}, {"balance": "sampling", "where": "age>=1"}])
def test_an_iterator_is_saved_and_restored_by_tensorflow(data, tmp_path, asked):
    train = data.train(batch_size=4, augment="none", seed=3, **asked)
    iterator = iter(train.dataset())
    for _ in range(4):  # into the second epoch
        next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "saved"))
    expected = [next(iterator) for _ in range(4)]
    again = iter(train.dataset())
    tf.train.Checkpoint(iterator=again).restore(saved)
    assert_same([next(again) for _ in range(4)], expected)
