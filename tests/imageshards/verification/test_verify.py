import copy
import functools
import json
import operator
import pathlib
import shutil

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imageshards.errors import UserError
from imageshards.example import decode_example
from imageshards.index import IndexRows, index_file, index_table, write_index
from imageshards.verification import checks
from imageshards.verification.command import CHECKS, main, verify
from tests.support.dataset_factory import Dataset, features_of, framed
from tests.support.errors import refused
from tests.support.external_sets import flip_byte
from tests.support.manifests import typed_features

FIRST = "train-00000-of-00003.tfrecord"
SECOND = "train-00001-of-00003.tfrecord"
OTHER = "validation-00000-of-00002.tfrecord"
INDEX = index_file(SECOND)
SURPLUS = "test-00000-of-00001.tfrecord"
REJECTS = "quarantine/rejects-00000-of-00001.tfrecord"
GONE = "the manifest lists it, but it is missing."
TRAIN = ("splits", "train")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    return Dataset(tmp_path_factory.mktemp("made") / "data", rejects={"truncated": 2})


@pytest.fixture
def dataset(made_once, tmp_path):
    """A fresh dataset of 3 + 2 shards of 6 records."""
    made = copy.deepcopy(made_once)
    made.directory = tmp_path / "data"
    shutil.copytree(made_once.directory, made.directory)
    return made


def problems_of(dataset):
    verdict = verify(str(dataset.directory), workers=1)
    return {c: [p.message for p in verdict.problems if p.check == c] for c in verdict.found}


def missing(dataset):
    (dataset.directory / SECOND).unlink()


def truncated(dataset, name=OTHER, count=10):
    path = dataset.directory / name
    path.write_bytes(path.read_bytes()[:-count])


def uneven(dataset):
    dataset.payloads[SECOND] = dataset.payloads[SECOND][:-2]
    dataset.write_shard(SECOND)
    dataset.describe()
    dataset.save()


def no_companions(dataset):
    (dataset.directory / "features.json").unlink()
    shutil.rmtree(dataset.directory / "transform" / "transform_fn")


def larger(dataset):
    with open(dataset.directory / SECOND, "ab") as file:
        file.truncate(1 << 40)  # takes no room, and would take an hour to read


def classes_apart(dataset):
    every = [payload for name in dataset.splits["train"] for payload in dataset.payloads[name]]
    every.sort(key=lambda payload: b"dog/" in payload)
    for i, name in enumerate(dataset.splits["train"]):
        dataset.payloads[name] = every[6 * i : 6 * i + 6]
        dataset.write_shard(name)
    dataset.describe()
    dataset.save()


def written(name, data):
    return lambda dataset: (dataset.directory / name).write_bytes(data)


def copied(name, to):
    return lambda dataset: shutil.copy(dataset.directory / name, dataset.directory / to)


def changed_row(column, value):
    def change(dataset):
        rows = IndexRows()
        for payload in dataset.payloads[SECOND]:
            rows.add(decode_example(payload), len(payload) + 16, 1000)
        table = index_table(rows, "train", SECOND, typed_features(dataset.manifest["features"]))
        values = table[column].to_pylist()
        values[4] = value
        place = table.column_names.index(column)
        table = table.set_column(place, table.schema.field(column), [values])
        entry = write_index(str(dataset.directory), SECOND, table)
        dataset.manifest["splits"]["train"]["shards"][1]["index"] = msgspec.to_builtins(entry)
        dataset.save()

    return change


def one_key_twice(dataset):
    dataset.replace(OTHER, 3, features_of(1, 1, image__key__sha256=[b"0" * 64]))


@pytest.mark.parametrize(
    ("damage", "checks", "said"),
    [
        (truncated, {"checksums", "files"}, f"{OTHER}, record 5 at byte"),
        (
            lambda d: written(OTHER, framed(d.payloads[OTHER][:-1]))(d),
            {"checksums", "files", "records"},
            f"{OTHER}: it holds 5 records; the manifest says 6.",
        ),
        (copied(FIRST, SURPLUS), {"files"}, f"{SURPLUS}: the manifest does not list it."),
        (one_key_twice, {"keys"}, f"'dog/1.jpg' is held by 2 records: {FIRST}, record 1; {OTHER}"),
        (uneven, {"balance"}, f"split 'train': {FIRST} holds 6 records but {SECOND} only 4"),
        (no_companions, {"files"}, f"features.json: {GONE}\ntransform/transform_fn/graph: {GONE}"),
        (lambda d: truncated(d, REJECTS, 1), {"accounting", "checksums", "files"}, "record 1 at"),
        (larger, {"files", "checksums"}, f"{SECOND}: it has more than"),
        (classes_apart, {"balance"}, f"{FIRST} holds 6 records of class 'cat' but train-00002-"),
        (copied(index_file(FIRST), INDEX), {"index"}, f"its {INDEX} is not the file that manife"),
        (written("index/x", b""), {"index"}, "index/x: the manifest does not list it."),
        (changed_row("class_name", "dog"), {"records"}, f"{SECOND}: it holds 4 records of clas"),
        (changed_row("key", "cat/0.jpg"), {"keys"}, f"'cat/0.jpg' is held by 2 records: {FIRST}"),
    ],
)
def test_each_damage_fails_only_its_own_checks(dataset, damage, checks, said):
    damage(dataset)
    problems = problems_of(dataset)
    assert problems.keys() == checks
    assert said in "\n".join(message for found in problems.values() for message in found)


@given(st.data())
@settings(max_examples=40, derandomize=True, deadline=None)
def test_a_flipped_or_missing_byte_of_any_file_is_found(made_once, data):
    """Only pages and duplicates, which people make again, may be others."""
    folder = made_once.directory
    name = data.draw(st.sampled_from([str(p) for p in folder.rglob("*") if p.is_file()]))
    path, whole = pathlib.Path(name), pathlib.Path(name).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    is_flipped = data.draw(st.booleans()) or not whole[place : place + 1].strip()
    between = bytes([whole[place] ^ 1 << data.draw(st.integers(0, 7))]) if is_flipped else b""
    path.write_bytes(whole[:place] + between + whole[place + 1 :])
    try:
        assert not verify(folder, workers=1).ok
    except UserError as e:
        assert path.name == "manifest.json" and "copy it again" in str(e)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("how", ["replaced", "being replaced"])
def test_a_dataset_that_is_replaced_meanwhile_is_not_called_damaged(dataset, monkeypatch, how):
    """As by a build with --overwrite, which first removes the manifest."""
    check = checks.check_shard

    def replace_and_check(directory, entry):
        if entry.file == SECOND:
            if how == "replaced":
                dataset.replace(SECOND, 0, features_of(100, 1))
            else:
                (dataset.directory / "manifest.json").unlink()
                (dataset.directory / ".staging").mkdir()
                truncated(dataset, SECOND)
        return check(directory, entry)

    monkeypatch.setattr("imageshards.verification.command.check_shard", replace_and_check)
    said = {"replaced": "by another dataset while", "being replaced": "its build has not ended"}
    with refused("DIR", said[how]):
        verify(str(dataset.directory), workers=1)


def test_several_processes_find_the_same_problems_in_the_same_order(dataset):
    for name in (OTHER, FIRST):
        flip_byte(dataset.directory / name, 200)
    one, two = (verify(str(dataset.directory), workers=n).problems for n in (1, 2))
    assert one == two
    assert [p.file for p in one if p.record is not None] == [FIRST, OTHER]


def test_a_check_that_could_not_read_everything_says_ok_where_read(dataset):
    missing(dataset)
    truncated(dataset)
    verdict = verify(str(dataset.directory), workers=1)
    rows = (line.split("  ") for line in str(verdict).splitlines())
    by_check = {check: next(filter(None, rest)).strip() for check, *rest in rows if check in CHECKS}
    wrong = dict.fromkeys(("files", "checksums"), "2 wrong")
    assert by_check == dict.fromkeys(CHECKS, "ok where read") | wrong


@pytest.mark.parametrize(
    ("check", "path", "value", "said"),
    [
        ("files", (*TRAIN, "shards", 1, "num_bytes"), 777, "the manifest says 777"),
        ("checksums", (*TRAIN, "shards", 1, "sha256"), "0" * 64, "the manifest says 0000"),
        ("manifest", (*TRAIN, "num_records"), 19, "its shards add up to 18"),
        ("manifest", (*TRAIN, "shards", 1, "file"), "x", f"is 'x', not '{SECOND}'"),
        ("manifest", ("classes",), ["cat"], "'dog' of a shard is not among the classes"),
        ("accounting", ("listed",), 33, "33 images were listed, but 30 records + 2 rejects = 32"),
        ("accounting", ("rejects",), {"empty": 2}, "the manifest says {'empty': 2}"),
    ],
)
def test_a_wrong_value_in_the_manifest_is_found(dataset, check, path, value, said):
    functools.reduce(operator.getitem, path[:-1], dataset.manifest)[path[-1]] = value
    dataset.save()
    assert said in "\n".join(problems_of(dataset)[check])


def test_the_exit_code_and_the_json_report_the_result(dataset, capsys):
    assert main([str(dataset.directory), "--workers", "1"]) == 0
    assert "All is well: 30 records" in capsys.readouterr().out
    missing(dataset)
    assert main([str(dataset.directory), "--workers", "1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["num_records"]) == (False, 24)
    assert told["problems"][0]["file"] == SECOND
