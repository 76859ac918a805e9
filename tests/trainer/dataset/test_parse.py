import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from imageshards.manifest import IMAGE_FEATURE, LABEL_FEATURE
from tests.support.errors import refused
from tests.support.external_sets import example
from tests.support.reader_sets import FEATURES, MODEL, jpeg, make_set, record_of, value_of
from trainer.dataset import parse
from trainer.dataset.open import check_inputs
from trainer.dataset.parse import batch_parser
from trainer.dataset.spec import FeatureSpec


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("features"), [[0]])


def _inputs(dataset, names, **changes):
    return dataclasses.replace(MODEL, features=check_inputs(dataset, ("image", *names)), **changes)


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("image", "agee"), "mean age?"),
        (("image", IMAGE_FEATURE), "name image"),
        (("image", LABEL_FEATURE), LABEL_FEATURE),
        (("image", "text"), "is a text"),
        (("image", "a/b", "a_b"), "a_b"),
    ],
)
def test_inputs_keep_their_order_and_others_are_refused_in_a_sentence(dataset, names, word):
    assert list(check_inputs(dataset, ("tokens", "image", "age"))) == ["tokens", "age"]
    number = FeatureSpec("int64", ())
    both = dataclasses.replace(dataset, features=FEATURES | {"a/b": number, "a_b": number})
    with refused("inputs", ",".join(names), word):
        check_inputs(both, names)


def test_a_batch_is_parsed_alike_eagerly_and_in_a_pipeline(dataset):
    records = tf.constant([record_of(3, 2), record_of(1, 0)])
    parse = batch_parser(dataset, _inputs(dataset, ("age", "box", "tokens")))
    mapped = tf.data.Dataset.from_tensors(records).map(lambda r: vars(parse(r)))
    for found in (vars(parse(records)), next(iter(mapped))):
        assert found["label"].numpy().tolist() == [2, 0]
        assert found["encoded"].numpy().tolist() == [jpeg(value_of(3)), jpeg(value_of(1))]
        inputs = found["inputs"]
        assert inputs["age"].numpy().tolist() == [1.5, 0.5]
        assert inputs["box"].numpy()[:, 2].tolist() == [3, 1] and inputs["box"].shape == (2, 4)
        assert inputs["tokens"].numpy().tolist() == [[1, 2, 3], [1, 0, 0]]


@pytest.mark.parametrize("expected", [[[1, 2], [1, 0]], [[1, 2, 3, 0], [1, 0, 0, 0]]])
def test_sequences_are_padded_and_cut_to_a_length(dataset, expected):
    parse = batch_parser(dataset, _inputs(dataset, ("tokens",), sequence_length=len(expected[0])))
    tokens = parse(tf.constant([record_of(3, 0), record_of(1, 0)])).inputs["tokens"]
    assert tokens.numpy().tolist() == expected


def test_an_empty_record_becomes_zeros_and_a_black_picture(dataset):
    shifted = dataclasses.replace(dataset, label_offset=5)
    parse = batch_parser(shifted, _inputs(dataset, ("age", "box", "tokens")))
    found = parse(tf.constant([b"", record_of(2, 6)]))
    assert found.present.numpy().tolist() == [False, True]
    assert found.label.numpy().tolist() == [0, 1]
    assert found.inputs["age"].numpy().tolist() == [0, 1]
    assert not found.inputs["box"].numpy()[0].any() and not found.inputs["tokens"].numpy()[0].any()
    assert not np.any(tf.io.decode_jpeg(found.encoded[0]).numpy())


@pytest.mark.parametrize(("offset", "label"), [(0, 3), (0, -1), (1, 0), (1, 4)])
def test_a_label_outside_the_classes_is_an_error(dataset, offset, label):
    parse = batch_parser(dataclasses.replace(dataset, label_offset=offset), MODEL)
    records = tf.data.Dataset.from_tensors(tf.constant([record_of(0, 1), record_of(1, label)]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="is no class, [01] to [23]"):
        list(records.map(lambda r: parse(r).label))


def test_labels_may_be_the_names_of_classes(dataset):
    features = {**FEATURES, LABEL_FEATURE: FeatureSpec("string", ())}
    parse = batch_parser(dataclasses.replace(dataset, features=features), MODEL)
    cat, bee, dog = (
        example({IMAGE_FEATURE: jpeg(9), LABEL_FEATURE: name}) for name in ("cat", "bee", "dog")
    )
    assert parse(tf.constant([cat, b"", bee])).label.numpy().tolist() == [2, 0, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="is no class"):
        parse(tf.constant([dog]))


@pytest.mark.parametrize("known", [["b", "", "\u00e9", "a"], [9, -(2**63), 2**63 - 1, 10]])
def test_values_are_numbered_in_the_order_of_the_known_ones(known, monkeypatch):
    monkeypatch.setattr(parse, "_HASHES", 7)  # so that hashes of texts are equal at first
    numbered = tf.function(lambda values: parse._numbered("name", values, known), autograph=False)
    kind = tf.constant(known[:1]).dtype if isinstance(known[0], str) else tf.int64
    for places in ([], [3, 0, 0, 2, 1]):
        found = numbered(tf.constant([known[place] for place in places], kind))
        assert found.numpy().tolist() == places
    for unknown in ("aa", "c", "\u00ea") if kind == tf.string else (-1, 11, 8):
        with pytest.raises(tf.errors.InvalidArgumentError, match="is no class"):
            numbered(tf.constant([known[0], unknown], kind))


@pytest.mark.parametrize(
    "values", [{LABEL_FEATURE: 0}, {IMAGE_FEATURE: b"", LABEL_FEATURE: 0}, {IMAGE_FEATURE: jpeg(9)}]
)
def test_a_record_without_picture_or_label_is_no_placeholder(dataset, values):
    with pytest.raises(tf.errors.InvalidArgumentError):
        batch_parser(dataset, MODEL)(tf.constant([record_of(0, 0), example(values)]))
