import gzip
import re
import resource
import shutil

import pytest

from imageshards import storage
from imageshards.adoption.command import adopt, main
from imageshards.deduplication import command as duplicates
from imageshards.errors import UserError
from imageshards.index import read_index
from imageshards.manifest import FeatureSpec, Image, Roles, Source
from imageshards.manifest.file import load_manifest, shard_path
from imageshards.reporting import command as report
from imageshards.tfrecord import frame_record, write_records
from imageshards.verification.command import verify
from tests.support.errors import refused
from tests.support.external_sets import example, flip_byte, jpeg, records_of
from tests.support.html_page import Page
from tests.support.pictures import flat, saved

TEXTS = {1: "tench", 2: "crane", 3: "crane"}
SCALAR = FeatureSpec("string", ())
HOT = {"image": jpeg(), "label": [0.0, 1.0, 0.0]}


def write_kaggle(folder, counts, label="class"):
    """`00-3.tfrec` holds 3 pictures: `image`, a label 0, 1, 2, 0, … and `id`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in counts.items():
        rows = range(count)
        records = [{"image": jpeg(i % 3, i), label: i % 3, "id": f"{name}-{i}"} for i in rows]
        write_records(str(folder / name), map(example, records))


def write_slim(folder, shards, texts=TEXTS):
    """ImageNet of tf-slim: labels from 1, names without an ending, one text for two classes."""
    folder.mkdir(exist_ok=True)
    for name, labels in shards.items():
        records = [
            {
                "image/encoded": jpeg(label % 3, label),
                "image/class/label": label,
                "image/class/text": texts[label],
                "image/filename": f"n{label:08d}_{i}.JPEG",
                "image/object/bbox/xmin": [0.5] * (i % 3),
            }
            for i, label in enumerate(labels)
        ]
        write_records(str(folder / name), map(example, records))


@pytest.fixture
def kaggle(tmp_path):
    """The features `image`, `class` and `id`; a test split without labels."""
    root = tmp_path / "kaggle"
    write_kaggle(root / "train", {"00-7.tfrec": 7, "01-5.tfrec": 5})
    write_kaggle(root / "val", {"00-7.tfrec": 3})
    write_kaggle(root / "test", {"00-2.tfrec": 2}, "number")
    return root


@pytest.fixture
def slim(tmp_path):
    shards = {
        "train-00000-of-00002": [1, 2, 3, 1],
        "train-00001-of-00002": [3, 3, 1],
        "validation-00000-of-00001": [2, 1],
    }
    write_slim(tmp_path / "slim", shards)
    return tmp_path / "slim"


def counts_of(manifest):
    return {n: [s.num_records for s in e.shards] for n, e in manifest.splits.items()}


def test_folders_are_splits_and_usual_names_are_found(kaggle, capsys):
    told = adopt(kaggle, class_names="rose,tulip,daisy")
    assert told == load_manifest(str(kaggle), adopted=True)
    assert counts_of(told) == {"train": [7, 5], "val": [3]}
    assert told.classes == ["rose", "tulip", "daisy"]
    assert told.adopted == Roles("image", "class", "id", None)
    assert told.image == Image(size=(32, 40), mode="exact", channels=3)
    first = told.splits["train"].shards[0]
    assert first.classes == {"rose": 3, "tulip": 2, "daisy": 2} and first.folder == "train"
    said = capsys.readouterr().err
    assert "split test is left out, since its records have no feature class" in said


def test_every_record_has_a_row_that_leads_to_it_and_names_its_class(slim, capsys):
    adopt(slim)
    assert "begin at 1" in capsys.readouterr().err
    told = adopt(slim, label_offset=1)
    assert (told.first_label, told.classes) == (1, ["tench", "crane 1", "crane 2"])
    assert told.features["image/object/bbox/xmin"] == FeatureSpec("float32", None)
    rows = read_index(str(slim), told).to_pylist()
    assert [row["label"] for row in rows] == [1, 2, 3, 1, 3, 3, 1, 2, 1]
    assert [row["class_name"] for row in rows][:3] == ["tench", "crane 1", "crane 2"]
    assert [row["key"] for row in rows][:2] == ["n00000001_0.JPEG", "n00000002_1.JPEG"]
    assert {(row["height"], row["width"]) for row in rows} == {(32, 40)}
    for row, record in zip(rows, records_of(slim / "train-00000-of-00002"), strict=False):
        assert row["offset"] == record.offset_bytes
    assert report.main([str(slim)]) == 0
    page = Page((slim / "report" / "index.html").read_text())
    shown = [str(image["alt"]) for image in page.all("img")]
    assert len(shown) == 9 and "tench: n00000001_0.JPEG" in shown


def test_the_fingerprint_depends_on_contents_but_not_on_places(slim, tmp_path):
    before = sorted(path.name for path in slim.iterdir())
    out = tmp_path / "out"
    for name in ("manifest.json", "index/train-00001-0123abcd.parquet", "notes"):
        storage.write(f"{out}/{name}.tmp-863179ee", b"")  # as a killed command leaves them
    assert main([str(slim), "--output", str(out), "--label_offset", "1"]) == 0
    assert sorted(path.name for path in slim.iterdir()) == before
    assert [path.name for path in out.rglob("*.tmp-*")] == ["notes.tmp-863179ee"]
    told = load_manifest(str(out), adopted=True, records_root=slim)
    shards = [shard for _, shard in told.shards()]
    assert {shard.folder for shard in shards} == {str(slim)}
    assert all(storage.exists(shard_path(str(out), shard.name)) for shard in shards)
    assert len([*(out / "index").glob("train-00001-*.parquet")]) == 1
    assert adopt(slim, label_offset=1).fingerprint == told.fingerprint
    named = {"label_offset": 1, "class_names": ("tench", "crane 1", "b")}
    assert adopt(slim, **named).fingerprint != told.fingerprint
    write_slim(slim, {"train-00001-of-00002": [1, 3, 3]})
    assert adopt(slim, label_offset=1).fingerprint != told.fingerprint


def test_splits_are_given_by_folders_and_globs_and_may_have_several_places(kaggle, tmp_path):
    write_kaggle(tmp_path / "more", {"00-4.tfrec": 4})
    places = [f"train={kaggle}/train/01*", f"train={tmp_path}/more", f"validation={kaggle}/val"]
    flags = [text for place in places for text in ("--split", place)]
    assert main([str(kaggle), "--output", str(tmp_path / "all"), *flags]) == 0
    told = load_manifest(str(tmp_path / "all"), adopted=True, records_root=tmp_path)
    assert counts_of(told) == {"train": [5, 4], "validation": [3]}
    told = adopt(kaggle, output=tmp_path / "one", split=f"train={kaggle}/train/01*")
    assert counts_of(told) == {"train": [5]}
    assert adopt(kaggle, split={"train": kaggle / "train", "val": kaggle / "val"}).splits["val"]


def adopted(folder, *records, name="a.tfrecord"):
    write_records(str(folder / name), map(example, records))
    told = adopt(folder)
    return told, read_index(str(folder), told).to_pydict()


def test_keys_are_unique_even_if_files_and_pictures_have_equal_names(tmp_path, capsys):
    for split, names in {"test": "ab", "train": "ac"}.items():
        (tmp_path / split).mkdir()
        records = [{"image": jpeg(), "label": i, "filename": n} for i, n in enumerate(names)]
        records.append({"image": jpeg(), "label": 0, "filename": f"{split}/data.tfrecord#0"})
        records.append({"image": jpeg(), "label": 1})
        write_records(str(tmp_path / split / "data.tfrecord"), map(example, records))
    told = adopt(tmp_path)
    keys = read_index(str(tmp_path), told)["key"].to_pylist()
    test, train = ([f"{split}/data.tfrecord#{i}" for i in range(4)] for split in ("test", "train"))
    assert keys == [test[0], "b", *test[2:], train[0], "c", *train[2:]]
    assert verify(tmp_path, workers=1).ok
    flip_byte(tmp_path / "test" / "data.tfrecord", 60)
    shutil.rmtree(tmp_path / "index")
    assert duplicates.main([str(tmp_path), "--workers", "1"]) == 2
    for said in (repr(verify(tmp_path, workers=1)), capsys.readouterr().err):
        assert "again by imageshards adopt" in said and "--overwrite" not in said


def test_a_split_whose_labels_are_all_hidden_is_left_out(tmp_path, capsys):
    for split, label in {"test": -1, "train": 0}.items():
        record = {"image": jpeg(), "label": label}
        write_records(str(tmp_path / f"{split}.tfrecord"), [example(record)] * 2)
    told = adopt(tmp_path)
    assert counts_of(told) == {"train": [2]} and verify(tmp_path, workers=1).ok
    assert (
        "the split test is left out, since its records all have label -1" in capsys.readouterr().err
    )
    assert counts_of(adopt(tmp_path, label="none")) == {
        "test": [2], "train": [2],
    }  # fmt: skip
    (tmp_path / "train.tfrecord").unlink()
    with refused("label_offset", "has label -1; expected 0 to 0"):
        adopt(tmp_path)


def test_labels_as_texts_are_the_classes_and_numbers_come_first(tmp_path):
    records = [{"image": jpeg(), "label": name} for name in ("10", "wolf", "9", "ant", "9")]
    told, rows = adopted(tmp_path, *records)
    assert told.classes == ["9", "10", "ant", "wolf"] and told.features["label"] == SCALAR
    assert rows["label"] == [1, 3, 0, 2, 0] and rows["key"][0] == "a.tfrecord#0"


def test_pictures_that_the_trainer_cannot_decode_are_named_and_left_to_training(tmp_path, capsys):
    palette = saved(flat("RGB", 9).convert("P"), "BMP")
    frames = {"save_all": True, "append_images": [flat("RGB", 200)], "lossless": True}
    animated = saved(flat("RGB", 9), "WEBP", **frames)
    pictures = [jpeg(), b"\xff\xd8\xffnothing", saved(flat("RGB", 9), "PNG"), palette, animated]
    told, rows = adopted(tmp_path, *({"image": one, "label": 0} for one in pictures))
    assert told.source == Source({"JPEG": 1, "PNG": 1})
    (sentence,) = told.warnings
    assert f"note: {sentence}" in capsys.readouterr().err
    assert re.match(r"3 pictures cannot be decoded, the first in record 1 of .*tfrecord", sentence)
    assert [width > 0 for width in rows["width"]] == [True, False, True, False, False]
    assert told.image.size is None


def test_a_picture_of_too_many_pixels_is_refused(tmp_path, capsys):
    record = example({"image": jpeg(), "label": 0})
    write_records(str(tmp_path / "a.tfrecord"), [record])
    assert main([str(tmp_path), "--max_image_mpx", "0.001"]) == 2
    assert "has a picture of (40, 32) pixels; expected up to 1,000" in capsys.readouterr().err
    assert main([str(tmp_path), "--max_image_mpx", "4000"]) == 2
    said = capsys.readouterr().err
    assert "--max_image_mpx received 4000.0; expected more than 0 and at most 178.9" in said


def test_lengths_of_all_records_make_a_shape(tmp_path):
    least = {"image": jpeg(), "label": 0}
    records = [least | {"box": [0.5] * 4, "tags": [1] * i, "none": []} for i in range(40)]
    assert adopted(tmp_path, *records, least)[0].features == {
        "box": FeatureSpec("float32", None),
        "image": SCALAR,
        "label": FeatureSpec("int64", ()),
        "tags": FeatureSpec("int64", None),
    }


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--feature_map", "picture=image"], "received 'picture'; expected NAME=FEATURE"),
        (["--feature_map", "image=imag"], "lack; expected .*, one string .*: id, image"),
        (["--feature_map", "image=class,image=id"], "expected one feature, or for label several"),
        (["--feature_map", "label=class,label=id"], "received label=class,label=id, which the rec"),
        (["--feature_map", "label=image"], "one class id or name in each record .class, id.,"),
        (["--feature_map", "label=class", "--label", "none"], "expected one of them"),
        (
            ["--label", "none", "--label_offset", "1"],
            "received 1 where records have no class ids",
        ),
        (["--feature_map", "image=id"], "feature 'id' begins with b'00-7.tf"),
        (["--class_names", "a,a,b"], "expected every name once"),
        (["--class_names", "a,b"], "record 2 of .* has class 2; expected 0 to 1 .*names"),
        (["--label_offset", "1"], "record 0 of .* has class 0; expected 1 to 2 .* correct it"),
        (["--split", "train"], "--split received 'train'; expected NAME=VALUE"),
        (
            ["--split", "a={0}/train", "--split", "b={0}/train"],
            "00-7.tfrec twice, also as",
        ),
        (["--split", "a b={0}/train"], "--split received 'a b'; expected the name of a split"),
    ],
)
def test_a_wrong_flag_is_reported_in_a_sentence(kaggle, capsys, flags, sentence):
    assert main([str(kaggle), *(flag.format(kaggle) for flag in flags)]) == 2
    assert re.search(sentence, capsys.readouterr().err)
    assert not (kaggle / "manifest.json").exists()


def test_class_names_in_another_order_than_the_texts_are_refused(tmp_path):
    write_slim(tmp_path, {"train-00000-of-00001": [1, 2, 1]}, {1: "ant", 2: "bee"})
    with pytest.raises(UserError, match="class 0 is 'bee', but most records .* text 'ant'"):
        adopt(tmp_path, label_offset=1, class_names=("bee", "ant"))


def test_one_hot_vectors_are_classes(tmp_path):
    told, rows = adopted(tmp_path, HOT, HOT | {"label": [1.0, 0.0, 0.0]})
    assert told.classes == ["0", "1", "2"] and told.label == "one"
    assert rows["label"] == [1, 0] and rows["class_name"] == ["1", "0"]
    assert told.splits["train"].shards[0].classes == {"0": 1, "1": 1}
    told = adopt(tmp_path, class_names=("a", "b", "c"), label="several")
    assert told.classes == ["a", "b", "c"] and told.label == "several"
    with pytest.raises(UserError, match="2 names, but label has 3 values .*; expected a name for"):
        adopt(tmp_path, class_names=("a", "b"))


def test_columns_of_0_and_1_are_several_labels(tmp_path, capsys):
    records = [{"image": jpeg(), "a - b": i % 2, "c": int(i > 1)} for i in range(4)]
    write_records(str(tmp_path / "00-4.tfrec"), map(example, records))
    assert main([str(tmp_path)]) == 2
    proposed = "each record (a - b, c), or --feature_map label=A,label=B for columns of 0 and 1"
    assert proposed in capsys.readouterr().err
    assert main([str(tmp_path), "--feature_map", "label=a - b,label=c"]) == 0
    assert "train 4 records; 2 labels" in capsys.readouterr().out
    told = load_manifest(str(tmp_path), adopted=True)
    assert told.roles.hot == ("a - b", "c") == (*told.classes,)
    rows = read_index(str(tmp_path), told).to_pydict()
    assert rows["label"] == [[], [0], [1], [0, 1]]
    assert rows["class_name"] == [[], ["a - b"], ["c"], ["a - b", "c"]]
    assert verify(str(tmp_path), workers=1).ok
    assert report.main([str(tmp_path)]) == duplicates.main([str(tmp_path), "--workers", "1"]) == 0
    page = Page((tmp_path / "report" / "index.html").read_text())
    shown = [str(image["alt"]).partition(":")[0] for image in page.all("img")]
    assert shown == ["no label", "a - b", "c", "a - b, c"]


def test_records_without_labels_are_adopted_with_label_none(tmp_path, capsys):
    record = {"image/encoded": jpeg(), "image/class/label": 0.5, "image/caption": "a photo"}
    write_records(str(tmp_path / "train.record"), [example(record)] * 2)
    assert main([str(tmp_path)]) == 2
    proposed = "--label none for records without labels or with other values, which --target "
    assert proposed in capsys.readouterr().err
    assert main([str(tmp_path), "--label", "none"]) == 0
    assert "train 2 records; no labels" in capsys.readouterr().out
    told = load_manifest(str(tmp_path), adopted=True)
    assert told.label == "none" and told.classes == []
    rows = read_index(str(tmp_path), told).to_pydict()
    assert rows["image/class/label"] == [0.5, 0.5] and "class_name" not in rows
    assert verify(str(tmp_path), workers=1).ok and report.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("payloads", "sentence"),
    [
        ([{"picture": jpeg(), "label": 0}], "no feature is known to be the image; .*feature_map"),
        (
            [{"image": jpeg(), "id": "7", "mask": jpeg(1)}],
            r"in each record \(id\), or feature_map=",
        ),
        ([{"image": jpeg(), "label": 20210101}], "label is up to 20210101; expected class ids"),
        ([{"image": saved(flat("RGB", 9), "TIFF"), "label": 0}], "'image' begins with b'II.*; e"),
        ([{"image": jpeg(), "label": b"\xff"}], "the 1 value b'.xff' in the feature label; exp"),
        ([HOT, {"image": jpeg()}], r"record 1 of .* \(at byte \d+\) has no feature label; exp"),
        ([HOT, HOT | {"label": [0.9, 0.1, 0.0]}], "the 3 values 0.8.*, 0.1.*, 0.0 in the feat"),
        ([HOT, HOT | {"label": [0.0, 1.0]}], "whose feature label has another type or number"),
        ([HOT, HOT | {"image": [jpeg(), jpeg()]}], "has the 2 values .* expected one encoded p"),
    ],
)
def test_unusable_records_are_refused_and_not_called_damaged(tmp_path, payloads, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        adopted(tmp_path, *payloads)
    assert "damaged" not in str(caught.value) and "copy" not in str(caught.value)


def test_an_adopt_that_is_refused_fails_or_is_stopped_keeps_the_dataset_before(slim, monkeypatch):
    before = adopt(slim, label_offset=1)
    files = {path: path.read_bytes() for path in slim.rglob("*") if path.is_file()}
    shutil.copy(slim / "train-00000-of-00002", slim.parent / "x.json")
    with pytest.raises(UserError, match="would be invalid.*'x.json'"):
        adopt(slim, label_offset=1, split={"train": slim.parent / "x.json"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    named = {"label_offset": 1, "class_names": ("tench", "crane 1", "b")}
    try:
        with refused("DIR", "cannot be read or written (File too large)"):
            adopt(slim, **named)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    write = storage.write

    def write_and_end(path, data):
        write(path, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(storage, "write", write_and_end)
        adopt(slim, **named)
    assert {path: path.read_bytes() for path in slim.rglob("*") if path.is_file()} == files
    assert load_manifest(str(slim), adopted=True) == before
    # No build replaces these records.
    with pytest.raises(UserError, match="whose records another tool wrote"):
        load_manifest(str(slim), "--output", adopted=False)


def test_another_adopt_replaces_the_dataset_and_removes_its_index(slim):
    before = adopt(slim, label_offset=1)
    (slim / "index" / "train-00007-0123abcd.parquet").touch()  # as a killed adopt leaves it
    (slim / "index" / "mine.parquet").touch()
    write_slim(slim, {"train-00000-of-00002": [2, 2]})
    (slim / "validation-00000-of-00001").unlink()
    after = adopt(slim, label_offset=1)
    assert after.fingerprint != before.fingerprint and verify(slim, workers=1).ok
    assert len(read_index(str(slim), after)) == 2 + 3
    of_index = [shard.index.file for _, shard in after.shards()]
    assert of_index[1] in [shard.index.file for _, shard in before.shards()]
    found = {str(path.relative_to(slim)) for path in (slim / "index").iterdir()}
    assert found == {*of_index, "index/mine.parquet"}


@pytest.mark.parametrize(
    ("damaged", "sentence"),
    [
        (lambda data: data[:60] + data[59:60] + data[61:], "at byte 0: the payload's checksum"),
        (lambda data: data[:-5], "record 2 at byte .*: the file ends inside.*split="),
        (gzip.compress, "at byte 0: the checksum of its .*: decompress a compressed file"),
        (lambda _: frame_record(b"\xff another type"), "at byte 0: it is no tf.train.Example"),
    ],
)
def test_a_damaged_file_is_named(slim, damaged, sentence):
    path = slim / "train-00001-of-00002"
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(UserError, match=sentence):
        adopt(slim, label_offset=1)
    assert not (slim / "manifest.json").exists()


@pytest.mark.parametrize(("there", "code"), [('{"adopted": {}}', 0), ('{"x": 1}', 2), ("{", 2)])
def test_only_a_manifest_that_adopt_wrote_is_replaced(slim, there, code, capsys):
    (slim / "manifest.json").write_text(there)
    assert main([str(slim), "--label_offset", "1"]) == code
    if code:
        assert "imageshards adopt did not write; expected" in capsys.readouterr().err
        assert (slim / "manifest.json").read_text() == there
