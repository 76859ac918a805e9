import dataclasses
import itertools
import types
import unicodedata
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.errors import naming_flags
from tests.support.errors import refused
from tests.support.manifests import blank
from tests.support.reader_sets import CLASSES, FEATURES, IMAGE, choose, make_set
from trainer.config import ReadConfig
from trainer.dataset import subset
from trainer.dataset.index import OPERATORS, Filter, parse_filter
from trainer.dataset.spec import DatasetSpec, FeatureSpec, Split
from trainer.reader.batches import open_data

_FILTERED = {"image/width": FeatureSpec("int64", ()), **FEATURES}


def test_classes_are_renumbered_in_the_order_given(tmp_path):
    dataset = make_set(tmp_path, [[0, 1, 2, 0, 1, 2], [2, 2]])
    subset = choose(dataset, classes=("cat", "ant"), filters=("number>=1",))
    assert (subset.classes, subset.class_ids) == (("cat", "ant"), (2, 0))
    assert (subset.class_counts, subset.num_records) == ((4, 1), 5)
    assert subset.record_classes.tolist() == [-1, -1, 0, 1, -1, 0, 0, 0]
    assert choose(dataset, balance="sampling").num_records == 12


@pytest.mark.parametrize(
    ("changes", "argument", "words"),
    [
        ({"classes": ("bea",)}, "classes", ("'bea'", "mean bee?", "'ant', 'bee', 'cat'")),
        ({"filters": ("age>old",)}, "where", ("age>old",)),
        ({"filters": ("age>9",)}, "where", ("'age>9'", "5 records")),
        ({"classes": ("ant",)}, "classes", ("ant", "train")),
        ({"balance": "sampling"}, "balance", ("ant", "balance='weights'")),
    ],
)
def test_an_impossible_subset_is_refused_in_one_sentence(tmp_path, changes, argument, words):
    dataset = make_set(tmp_path, [[1, 1], [2, 2, 2]])
    with refused(argument, *words):
        choose(dataset, **changes)


@pytest.mark.parametrize(
    ("training", "validation", "shared"),
    [
        ({}, {}, "5 records"),
        ({"filters": ("number!=0",)}, {"filters": ("number==0",)}, ""),
        ({"filters": ("number<3",)}, {"filters": ("number>=2",)}, "1 record "),
        ({"classes": ("bee",)}, {"classes": ("cat",)}, ""),
        ({"balance": "sampling", "filters": ("number>0",)}, {}, "4 records"),
    ],
)
def test_a_validation_on_records_of_the_training_is_refused(tmp_path, training, validation, shared):
    dataset = make_set(tmp_path, [[1, 1, 0], [0, 2]])
    chosen = [choose(dataset, **one) for one in (training, validation)]
    with refused("validation_split", shared, "'train'") if shared else nullcontext():
        subset.refuse_overlap(*chosen)
    other = dataclasses.replace(dataset, fingerprint="another")
    subset.refuse_overlap(chosen[0], dataclasses.replace(chosen[1], dataset=other))


def test_a_command_validates_on_its_training_records_only_if_told(tmp_path):
    make_set(tmp_path, [[0, 1, 2, 0, 1, 2]])
    config = ReadConfig(str(tmp_path), validation_split="train", where=("number>0",), batch_size=2)
    with naming_flags(), refused("validation_split", "--allow_overlap", "use --validation_split n"):
        open_data(config)
    assert open_data(dataclasses.replace(config, validation_split="none"))[1] is None
    validation = open_data(dataclasses.replace(config, allow_overlap=True))[1]
    assert validation is not None and validation.num_records == 5


@given(st.lists(st.integers(0, 10_000), min_size=3, max_size=3))
def test_weights_make_every_class_with_records_weigh_the_same(counts):
    classes = dict(zip(CLASSES, counts, strict=True)), {"bee": 2, "cat": 3}
    shards: Any = [
        types.SimpleNamespace(num_records=sum(one.values()), classes=one) for one in classes
    ]
    split = Split("train", shards, ("a", "b"))
    dataset = DatasetSpec("DATA", {"train": split}, CLASSES, IMAGE, FEATURES, blank())
    subset = choose(dataset, balance="weights")
    assert subset.class_counts and subset.class_weights
    # The second shard has 2 more bees and 3 more cats.
    assert subset.class_counts == (counts[0], counts[1] + 2, counts[2] + 3)
    pairs = zip(subset.class_counts, subset.class_weights, strict=True)
    whole = subset.num_records / (3 if counts[0] else 2)
    assert [n * w for n, w in pairs] == pytest.approx([whole if counts[0] else 0, whole, whole])
    assert counts[0] or subset.class_weights[0] == 1


def test_filters_are_parsed():
    texts = ["text==a >= b", "text=='x, 3'", 'text==" a\'s "', """text=="'x'\"""", "text=='tis"]
    found = [parse_filter(text, _FILTERED) for text in texts]
    values = ["a >= b", "x, 3", " a's ", "'x'", "'tis"]
    assert found == [Filter("text", "==", value) for value in values]
    assert parse_filter("age>='3'", _FILTERED) == Filter("age", ">=", 3.0)
    assert parse_filter(" image/width <= -1 ", _FILTERED) == Filter("image/width", "<=", -1)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (">=3", "expected FEATURE"),
        ("image/widht>=3", "mean image/width?"),
        ("image/width>=12.5", "'12.5'"),
        ("image/width>=9223372036854775808", "a whole number"),
        ("image/width>=1" + "0" * 400, "a whole number"),
        ("age>=old", "a number"),
        ("text>=b", "== or !="),
        ("box>=1", "[4]"),
    ],
)
def test_a_text_that_is_no_filter_is_refused_with_a_hint(text, word):
    with refused("where", repr(text), word):
        parse_filter(text, _FILTERED)


@given(st.sampled_from([*OPERATORS]), st.integers(-(2**63), 2**63 - 1), st.sampled_from(["", " "]))
def test_any_int64_is_parsed_exactly(operator, value, space):
    text = f"image/width{space}{operator}{space}{value}"
    assert parse_filter(text, _FILTERED) == Filter("image/width", operator, value)


def test_a_class_is_found_in_either_form_of_unicode():
    nfc, nfd = (unicodedata.normalize(form, "Čmelák") for form in ("NFC", "NFD"))
    for name, known in itertools.product((nfc, nfd), repeat=2):
        dataset: Any = types.SimpleNamespace(classes=("a", known), data="shards")
        assert subset._class_ids(dataset, [name]) == (1,)
    dataset = types.SimpleNamespace(classes=("c\u0430t",), data="shards")
    with refused("classes", r"'c\u0430t'", "'cat'"):
        subset._class_ids(dataset, ["cat"])
