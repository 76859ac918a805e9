"""verify names every damage with file, record and offset, and is silent about good data."""

import json
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.example import encode_example
from imageshards.verification.command import CHECKS, main, text_of, verify
from tests.support.dataset_factory import Dataset, features_of, framed

FIRST = "train-00000-of-00003.tfrecord"
SECOND = "train-00001-of-00003.tfrecord"
OTHER = "validation-00000-of-00002.tfrecord"


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    return Dataset(tmp_path_factory.mktemp("made") / "data", rejects={"truncated": 2}).directory


@pytest.fixture
def dataset(made_once, tmp_path):
    """A fresh data set of 3 + 2 shards of 6 records."""
    return Dataset(tmp_path / "data", rejects={"truncated": 2}, index=True)


def problems_of(dataset, **options):
    verdict = verify(str(dataset.directory), workers=1, **options)
    return {check: [p for p in verdict.problems if p.check == check] for check in verdict.found}


def only(problems, check):
    """The one problem, where nothing else may be wrong."""
    assert {c for c, found in problems.items() if found} == {check}
    (problem,) = problems[check]
    return problem


def test_a_good_data_set_has_no_problem(tmp_path):
    rejects = {"truncated": 1, "empty": 2}
    dataset = Dataset(tmp_path, rejects=rejects, index=True)
    verdict = verify(str(dataset.directory), workers=1)
    assert (verdict.ok, verdict.problems, verdict.notes) == (True, [], [])
    assert (verdict.num_shards, verdict.num_records) == (5, 30)


def test_processes_find_the_same_in_the_same_order(dataset):
    for name in (OTHER, FIRST):
        path = dataset.directory / name
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
    one, two = (verify(str(dataset.directory), workers=n).problems for n in (1, 2))
    assert one == two
    assert [p.file for p in one if p.record is not None] == [FIRST, OTHER]


# ---- damaged files -------------------------------------------------------------------


def test_one_flipped_bit_is_named_with_file_record_and_offset(dataset):
    path = dataset.directory / SECOND
    data = bytearray(path.read_bytes())
    start = sum(16 + len(p) for p in dataset.payloads[SECOND][:4])
    data[start + 100] ^= 0x10
    path.write_bytes(data)
    problems = problems_of(dataset)
    assert problems.keys() == {"checksums"}
    shard, record = sorted(problems["checksums"], key=lambda problem: problem.record is not None)
    assert shard.message.startswith(f"{SECOND}: its SHA-256 is ")
    assert (record.file, record.record, record.offset_bytes) == (SECOND, 4, start)
    expected = f"{SECOND}, record 4 at byte {start}: the payload's checksum is wrong."
    assert record.message == expected


@given(st.data())
def test_any_flipped_bit_anywhere_fails(made_once, data):
    path = made_once / FIRST
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    try:
        verdict = verify(str(made_once), workers=1)
    finally:
        path.write_bytes(whole)
    assert verdict.found["checksums"] >= 2
    assert {p.file for p in verdict.problems} == {FIRST}


def test_a_truncated_shard_is_named_with_its_last_record(dataset):
    path = dataset.directory / OTHER
    path.write_bytes(path.read_bytes()[:-10])
    problems = problems_of(dataset)
    assert problems.keys() == {"checksums", "files"}
    assert {(p.file, p.record) for p in problems["checksums"]} == {(OTHER, None), (OTHER, 5)}
    assert "has " in problems["files"][0].message


def test_a_shard_cut_between_records_is_named(dataset):
    path = dataset.directory / OTHER
    path.write_bytes(framed(dataset.payloads[OTHER][:-1]))
    problems = problems_of(dataset)
    assert problems.keys() == {"files", "checksums", "records"}
    assert problems["records"][0].message == f"{OTHER}: it holds 5 records; the manifest says 6."


def test_a_missing_shard_is_named(dataset):
    (dataset.directory / SECOND).unlink()
    problem = only(problems_of(dataset), "files")
    assert problem.message == f"{SECOND}: the manifest lists it, but it is missing."


def test_what_was_not_looked_at_is_not_said_to_be_ok(dataset):
    (dataset.directory / SECOND).unlink()
    path = dataset.directory / OTHER
    path.write_bytes(path.read_bytes()[:-10])
    verdict = verify(str(dataset.directory), workers=1)
    rows = (line.split("  ") for line in text_of(verdict).splitlines())
    by_check = {check: next(filter(None, rest)).strip() for check, *rest in rows if check in CHECKS}
    assert by_check.keys() == CHECKS.keys()
    assert by_check["manifest"] == by_check["accounting"] == "ok"
    assert by_check["files"] == "2 wrong"
    assert by_check["checksums"] == "2 wrong, not looked at in 1 shard"
    assert by_check["keys"] == "not looked at in 1 shard"
    assert by_check["records"] == "not looked at in 2 shards"


def test_a_shard_that_is_a_folder_is_named(dataset):
    (dataset.directory / SECOND).unlink()
    (dataset.directory / SECOND).mkdir()
    assert only(problems_of(dataset), "files").file == SECOND


@pytest.mark.parametrize("name", ["train-00003-of-00004.tfrecord", "test-00000-of-00001.tfrecord"])
def test_an_extra_shard_is_named(dataset, name):
    shutil.copy(dataset.directory / FIRST, dataset.directory / name)
    assert only(problems_of(dataset), "files").file == name


def test_swapped_shards_are_recognised(dataset):
    first, second = dataset.directory / FIRST, dataset.directory / OTHER
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    messages = {p.message for p in problems_of(dataset)["checksums"]}
    assert messages == {
        f"{FIRST}: it holds the bytes of {OTHER}.",
        f"{OTHER}: it holds the bytes of {FIRST}.",
    }


def test_a_key_in_two_splits_is_named_with_both_places(dataset):
    dataset.replace(OTHER, 3, features_of(1, 1, image__key__sha256=[b"0" * 64]))
    problem = only(problems_of(dataset), "keys")
    assert "'dog/1.jpg' is held by 2 records" in problem.message
    assert f"{FIRST}, record 1; {OTHER}, record 3" in problem.message


# ---- a manifest that is wrong ----------------------------------------------------------


def _change(manifest, path, value):
    *parents, last = path
    for key in parents:
        manifest = manifest[key]
    manifest[last] = value


TRAIN = ("splits", "train")


@pytest.mark.parametrize(
    ("check", "path", "value", "said"),
    [
        ("files", (*TRAIN, "shards", 1, "num_bytes"), 777, "the manifest says 777"),
        ("checksums", (*TRAIN, "shards", 1, "sha256"), "0" * 64, "the manifest says 0000"),
        ("manifest", (*TRAIN, "num_records"), 19, "its shards add up to 18"),
        ("manifest", (*TRAIN, "shards", 1, "file"), "x", f"is 'x', not '{SECOND}'"),
        ("manifest", ("classes",), ["cat"], "'dog' of a shard is not among the classes"),
        ("records", (*TRAIN, "shards", 1, "classes"), {"cat": 2, "dog": 4}, "manifest says 2"),
        ("accounting", ("listed",), 33, "33 images were listed, but 30 records + 2 rejects = 32"),
        ("accounting", ("rejects",), {"empty": 2}, "holds 0 rejects for 'empty'"),
    ],
)
def test_a_wrong_statement_of_the_manifest_is_found(dataset, check, path, value, said):
    _change(dataset.manifest, path, value)
    dataset.save()
    problems = problems_of(dataset)
    assert said in "\n".join(p.message for p in problems[check])


def test_a_manifest_of_the_wrong_form_is_said_and_nothing_else_checked(dataset, capsys):
    _change(dataset.manifest, ("features", "image/height"), {"dtype": "string", "shape": []})
    dataset.save()
    assert main([str(dataset.directory)]) == 2
    said = "features['image/height'].dtype is 'string'; expected int64: copy it again"
    assert said in capsys.readouterr().err


def test_a_shard_with_two_records_more_than_another_is_imbalance(dataset):
    dataset.payloads[SECOND] = dataset.payloads[SECOND][:-2]
    dataset.write_shard(SECOND)
    dataset.describe()
    dataset.save()
    message = only(problems_of(dataset), "balance").message
    assert f"{FIRST} holds 6 records but {SECOND} only 4" in message


def by_class(tmp_path, counts):
    """A data set sharded by class; `counts` are (class, records) per shard."""
    dataset = Dataset(tmp_path, shards={"train": len(counts)}, per_shard=0)
    dataset.manifest["shard_by"] = "class"
    number = 0
    for name, labels in zip(dataset.splits["train"], counts, strict=True):
        for label in labels:
            shard = dataset.payloads[name]
            shard.append(b"")
            dataset.replace(name, len(shard) - 1, features_of(number, label))
            number += 1
    return dataset


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([[0] * 7, [1] * 2, [1] * 3], None),
        ([[0] * 7, [1] * 2, []], None),
        ([[0] * 7, [1] * 2, [1] * 4], "class 'dog'"),
        ([[0, 1], [1] * 2], "holds 2 classes"),
    ],
)
def test_shards_by_class_hold_one_class_and_balance_within_it(tmp_path, counts, said):
    problems = problems_of(by_class(tmp_path, counts))
    assert said in only(problems, "balance").message if said else not problems


# ---- companions -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["features.json", "transform/transform_fn"])
def test_what_every_data_set_has_beside_its_shards_is_named_where_it_is_missing(dataset, name):
    path = dataset.directory / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert only(problems_of(dataset), "files").message == f"{name} is missing."


def test_a_missing_list_of_rejects_is_named(dataset):
    (dataset.directory / "quarantine" / "rejects.jsonl").unlink()
    assert "rejects.jsonl is missing" in only(problems_of(dataset), "accounting").message


def test_a_damaged_quarantine_is_named_with_its_record(dataset):
    path = dataset.directory / "quarantine" / "rejects-00000-of-00001.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    message = only(problems_of(dataset), "accounting").message
    assert "rejects-00000-of-00001.tfrecord, record 1 at byte" in message


def test_lost_rejects_are_noticed(dataset):
    path = dataset.directory / "quarantine" / "rejects-00000-of-00001.tfrecord"
    path.write_bytes(framed([b""]))
    assert "holds 1 record;" in only(problems_of(dataset), "accounting").message
    path.unlink()
    assert "holds 0 records;" in only(problems_of(dataset), "accounting").message


def test_lost_bytes_of_rejects_are_noticed_unless_they_were_switched_off(dataset):
    path = dataset.directory / "quarantine" / "rejects-00000-of-00001.tfrecord"
    path.write_bytes(framed([encode_example({"stage": [b"decode"]})] * 2))
    dataset.manifest["options"] = {"quarantine_bytes": False}
    dataset.save()
    assert not problems_of(dataset)
    dataset.manifest["options"] = {"quarantine_bytes": True}
    dataset.save()
    assert "original bytes of 2 rejects" in only(problems_of(dataset), "accounting").message


def test_left_over_staging_is_a_note(dataset):
    (dataset.directory / ".staging").mkdir()
    verdict = verify(str(dataset.directory), workers=1)
    assert verdict.ok
    assert ".staging/ is left over" in verdict.notes[0]


# ---- the command ------------------------------------------------------------------------


def test_the_command_s_exit_code_tells(dataset, capsys):
    assert main([str(dataset.directory)]) == 0
    assert "All is well: 30 records" in capsys.readouterr().out
    (dataset.directory / SECOND).unlink()
    assert main([str(dataset.directory)]) == 1
    assert f"{SECOND}: the manifest lists it" in capsys.readouterr().out


def test_a_folder_without_manifest_is_one_sentence(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("imageshards verify: ")
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("flags", [["--sample", "1"], ["--workers", "0"], []])
def test_wrong_flags_are_refused(flags, capsys):
    assert main(flags + ["x"] if flags else []) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_json_tells_all(dataset, capsys):
    (dataset.directory / SECOND).unlink()
    assert main([str(dataset.directory), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["num_records"]) == (False, 24)
    assert told["problems"][0]["file"] == SECOND
    assert set(told["found"]) <= set(CHECKS)


@pytest.mark.process
@pytest.mark.parametrize("room", ["verification", "report"])
def test_help_loads_neither_beam_nor_tensorflow(room):
    code = (
        f"import sys, imageshards.{room}.command as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'apache_beam', 'tensorflow', 'PIL', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
