"""What is listed of an archive, what is passed over, and what is refused in one sentence."""

import bz2
import contextlib
import gc
import gzip
import io
import json
import lzma
import os
import pathlib
import random
import shutil
import tarfile
import zipfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.images.read import ZIP_HEADER_BYTES, read_images, read_zip_member
from beam_pipeline.inputs.archives import members as archives
from beam_pipeline.inputs.layout import expand_braces
from beam_pipeline.inputs.listing import schema_of
from beam_pipeline.options import InputOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import ImageError
from tests.support.errors import refused
from tests.support.listings import labels, listed, put
from tests.support.stores import store_uri

MAX_BYTES = 10_000


def in_folder(path: object, **options) -> InputOptions:
    return archives.with_files(InputOptions(str(path), **options))


def contents(refs: dict[str, ImageRef]) -> dict[str, bytes | str]:
    """Key → content, or the code of an error."""
    read = read_images(list(refs.values()), MAX_BYTES)
    return {ref.key: data.code if isinstance(data, ImageError) else data for ref, data in read}


def tar(path: pathlib.Path, *members: Any, data: bytes = b"") -> pathlib.Path:
    """A tar; each file holds its own name, or `data`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as packed:
        for member in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            content = data or info.name.encode()
            info.size = len(content) if info.isreg() else 0
            packed.addfile(info, io.BytesIO(content))
    return path


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "cat/1.jpg"
    return info


def test_members_outside_the_archive_and_special_members_are_counted(tmp_path):
    members = [
        "cat/1.jpg", "./dog/2.jpg", "../out.jpg", "/etc/3.jpg", "cat/../../4.jpg", "dog/notes.txt",
        "__MACOSX/cat/._1.jpg", special("cat/l.jpg", tarfile.SYMTYPE),
        special("cat/h.jpg", tarfile.LNKTYPE), special("cat/d.jpg", tarfile.CHRTYPE), "top.jpg",
    ]  # fmt: skip
    refs, skipped = listed(tar(tmp_path / "a.tar", *members))
    assert contents(refs) == {"cat/1.jpg": b"cat/1.jpg", "dog/2.jpg": b"./dog/2.jpg"}
    assert skipped == {
        "outside_archive": 3, "not_an_image_name": 1, "system_file": 1, "link": 2,
        "special_file": 1, "outside_class_folders": 1,
    }  # fmt: skip


def test_several_archives_are_folders_or_parts(tmp_path):
    for name in ("cat", "dog"):
        tar(tmp_path / "classes" / f"{name}.tar", "1.jpg", "deep/2.jpg")
        tar(tmp_path / "flat" / f"{name}.tar", "1.jpg")
    deep = {f"{name}/deep/2.jpg": ("deep", None) for name in ("cat", "dog")}
    assert labels(in_folder(tmp_path / "classes", layout="class_folders")) == deep
    flat = {"cat/1.jpg": ("cat", None), "dog/1.jpg": ("dog", None)}
    assert labels(in_folder(tmp_path / "flat")) == flat
    assert labels(f"{tmp_path}/flat/*.tar") == flat
    assert labels(in_folder(store_uri(tmp_path / "flat"))) == flat
    for name in ("train", "test"):
        tar(tmp_path / "splits" / f"{name}.tar", "cat/1.jpg", "dog/2.jpg")
    assert labels(in_folder(tmp_path / "splits"))["test/dog/2.jpg"] == ("dog", "test")
    for number in range(2):
        tar(tmp_path / "parts" / f"part-{number}.tar", f"cat/{number}.jpg", f"dog/{number}.jpg")
    assert labels(f"{tmp_path}/parts/part-{{0..1}}.tar") == {
        f"part-{n}/{name}/{n}.jpg": (name, None) for n in range(2) for name in ("cat", "dog")
    }


def test_archives_beside_a_table_or_in_folders_are_named(tmp_path):
    for split in ("train", "test"):
        tar(tmp_path / "deep" / split / "0.tar", f"cat/{split}.jpg", f"dog/{split}.jpg")
    with refused("input", "deep'", "'0.tar'", "/**/*.tar'"):
        listed(in_folder(tmp_path / "deep"))
    splits = {key: split for key, (_, split) in labels(f"{tmp_path}/deep/**/*.tar").items()}
    assert splits["test/0/cat/test.jpg"] == "test" and len(splits) == 4
    put(tmp_path / "deep" / "train", "rows.csv", "README.md")
    with refused("input", "'rows.csv'", f"'{tmp_path}/deep/train/*.tar'"):
        in_folder(tmp_path / "deep" / "train")
    assert len(labels(f"{tmp_path}/deep/train/*.tar")) == 2


def test_a_tar_that_ends_too_early_is_refused_wherever_it_is_cut(tmp_path):
    whole = tar(tmp_path / "a.tar", "cat/1.jpg", "dog/2.jpg", data=b"x" * 1000).read_bytes()
    end = whole.index(b"dog/2.jpg") + 512 + 1024  # of the last file, padded
    for cut in (1, 511, 700, 1500, 1536, 1536 + 100, end - 1, end - 600, end, end + 100):
        (tmp_path / "a.tar").write_bytes(whole[:cut])
        with refused("input", "a.tar'", "cut off"):
            listed(tmp_path / "a.tar")
    broken = bytearray(whole)
    broken[1536 + 10] ^= 255  # in the header of the second file
    (tmp_path / "a.tar").write_bytes(bytes(broken))
    with refused("input", "byte 1,536"):
        listed(tmp_path / "a.tar")


def zipped(path: pathlib.Path, files: dict[str, bytes], **options: Any) -> pathlib.Path:
    with zipfile.ZipFile(path, "w", **options) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return path


def tar_of_tars(path: pathlib.Path, **inner: bytes) -> pathlib.Path:
    with tarfile.open(path, "w") as packed:
        for name, data in inner.items():
            info = tarfile.TarInfo(f"{name}.tar")
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    return path


def test_tars_that_were_joined_are_read_to_the_last_one(tmp_path):
    one, other = (tar(tmp_path / f"{n}.tar", f"{n}/1.jpg").read_bytes() for n in ("cat", "dog"))
    (tmp_path / "a.tar").write_bytes(one + other)
    (tmp_path / "a.tgz").write_bytes(gzip.compress(one) + gzip.compress(other))
    (tmp_path / "a.tar.xz").write_bytes(lzma.compress(one) + lzma.compress(other))
    (tmp_path / "a.tar.bz2").write_bytes(bz2.compress(one) + bz2.compress(other))
    tar_of_tars(tmp_path / "tars.tar", in_one=one + other, last=other)
    for name in ("a.tar", "a.tgz", "a.tar.xz", "a.tar.bz2"):
        refs, _ = listed(tmp_path / name, str(tmp_path / "spool"))
        assert contents(refs) == {f"{n}/1.jpg": f"{n}/1.jpg".encode() for n in ("cat", "dog")}
    refs, _ = listed(tmp_path / "tars.tar", layout="split_folders")
    assert contents(refs) == {
        "in_one/cat/1.jpg": b"cat/1.jpg", "in_one/dog/1.jpg": b"dog/1.jpg",
        "last/dog/1.jpg": b"dog/1.jpg",
    }  # fmt: skip


def test_an_inner_tar_without_its_end_is_refused(tmp_path):
    whole = tar(tmp_path / "cat.tar", "1.jpg", "2.jpg").read_bytes()
    for cut in (1024, 1536, 2048):
        path = tar_of_tars(tmp_path / "a.tar", cat=whole[:cut], dog=whole)
        with refused("input", "a.tar'", "cut off"):
            listed(path)


@pytest.mark.parametrize("name", ["a.tar", "a.zip", "a.tgz"])
def test_other_bytes_behind_the_end_are_refused(tmp_path, name):
    whole = tar(tmp_path / "a.tar", "cat/1.jpg", "dog/2.jpg").read_bytes()
    ending = name.rpartition(".")[2]
    if ending == "zip":
        one, other = (zipped(tmp_path / name, {f"cat/{n}.jpg": b"x"}).read_bytes() for n in (1, 2))
        (tmp_path / name).write_bytes(one + other)
        with refused("input", "a.zip'"):
            listed(tmp_path / name)
        whole = one
    elif ending != "tar":
        whole = gzip.compress(whole)
    for behind, is_whole in ((b"", True), (b"\0" * 512, ending != "zip"), (b"more", False)):
        (tmp_path / name).write_bytes(whole + behind)
        with contextlib.nullcontext() if is_whole else refused("input", f"{name}'"):
            assert listed(tmp_path / name, str(tmp_path / f"spool{len(behind)}"))[0]


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header with any size, as GNU tar writes numbers that need more than 33 bits."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (size % 256**12 | 1 << 95).to_bytes(12, "big")
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("size", [-512, -1, -(2**62), 2**63, 2**70, 2**40])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_sizes_that_no_member_has_end_the_listing_at_once(tmp_path, size, kind):
    first = tar(tmp_path / "a.tar", "cat/1.jpg").read_bytes()[:1024]
    for before in (b"", first):
        (tmp_path / "a.tar").write_bytes(before + header("dog/1.jpg", size, kind) + bytes(2048))
        with refused("input", "a.tar'"):
            listed(tmp_path / "a.tar")
    pax = tarfile.TarInfo("dog/1.jpg")
    pax.pax_headers = {"size": str(size)}
    (tmp_path / "a.tar").write_bytes(first + pax.tobuf(tarfile.PAX_FORMAT) + bytes(2048))
    with refused("input", "a.tar'"):
        listed(tmp_path / "a.tar")


@pytest.fixture
def no_collection():
    """At the limit of recursion the finalizers of what other tests left behind would fail."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_headers_and_tars_inside_each_other_without_end_are_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(header("x", 0, tarfile.XHDTYPE) * 3000)
    with refused("input", "a.tar'"):
        listed(tmp_path / "a.tar")
    for _ in range(400):
        tar_of_tars(tmp_path / "b.tar", x=(tmp_path / "a.tar").read_bytes())
        os.replace(tmp_path / "b.tar", tmp_path / "a.tar")
    with refused("input", "a.tar'"):
        listed(tmp_path / "a.tar")


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.xz"])
@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x1f\x8b\x08" + b"\0" * 30])
def test_a_file_that_is_no_archive_is_refused_in_one_sentence(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with refused("input", f"'{tmp_path}/{name}'"):
        listed(tmp_path / name, spool=str(tmp_path / "spool"))
    with refused("input", f"other-{name}", "fix the path"):
        listed(tmp_path / f"other-{name}", spool=str(tmp_path / "spool"))
    packed = gzip.compress(tar(tmp_path / "whole.tar", "cat/1.jpg", "dog/2.jpg").read_bytes())
    (tmp_path / "cut.tgz").write_bytes(packed[:-20])
    with refused("input", "cut.tgz"):
        listed(tmp_path / "cut.tgz", spool=str(tmp_path / "spool"), layout="class_folders")
    assert not list(tmp_path.glob("spool/*"))


def test_members_of_a_zip_are_read_and_its_oddities_counted(tmp_path):
    link = zipfile.ZipInfo("cat/link.jpg")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("cat/1.jpg", b"stored")
        packed.writestr("dog/2.jpg", b"deflated" * 100, zipfile.ZIP_DEFLATED)
        packed.writestr("dog\\3.jpg", b"windows")
        packed.writestr("dog/4.jpg", b"bz2", zipfile.ZIP_BZIP2)
        packed.writestr("dog/bomb.jpg", b"\0" * (MAX_BYTES + 1), zipfile.ZIP_DEFLATED)
        packed.writestr(link, "1.jpg")
        packed.writestr("../5.jpg", b"outside")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    refs, skipped = listed(tmp_path / "a.zip")
    assert skipped == {"unknown_compression": 1, "link": 1, "outside_archive": 1}
    content = {"cat/1.jpg": b"stored", "dog/2.jpg": b"deflated" * 100, "dog/3.jpg": b"windows"}
    assert contents(refs) == content | {"dog/bomb.jpg": "too_many_bytes"}
    data[data.index(b"stored")] ^= 1
    (tmp_path / "b.zip").write_bytes(data)
    assert contents(listed(tmp_path / "b.zip")[0])["cat/1.jpg"] == "corrupt"
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the flag of the first file in the directory
    (tmp_path / "c.zip").write_bytes(data)
    refs, skipped = listed(tmp_path / "c.zip")
    assert "cat/1.jpg" not in refs and skipped["encrypted"] == 1


def test_members_of_a_streamed_zip_are_checked_by_the_checksum_behind_them(tmp_path):
    class Pipe(io.BytesIO):
        def seek(self, *given):
            raise io.UnsupportedOperation

        tell = seek

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as packed:
        packed.writestr("cat/1.jpg", b"stored")
        packed.writestr("dog/2.jpg", b"deflated", zipfile.ZIP_DEFLATED)
    data = bytearray(pipe.getvalue())
    for changed in (False, True):
        data[data.index(b"stored")] ^= changed
        (tmp_path / "a.zip").write_bytes(data)
        expected = {"cat/1.jpg": "corrupt" if changed else b"stored", "dog/2.jpg": b"deflated"}
        assert contents(listed(tmp_path / "a.zip")[0]) == expected


@pytest.mark.parametrize(
    ("encoding", "classes", "option", "is_known"),
    [
        ("cp932", ["猫", "表示"], "cp932", True),
        ("gbk", ["猫", "鸟"], "gbk", True),
        ("cp932", ["猫", "表示"], None, False),
        ("utf-8", ["猫", "été"], None, True),  # as macOS writes it
        ("cp932", ["cat", "dog"], None, True),
        ("gbk", ["猫", "狗"], None, False),  # the first name is valid UTF-8, too
    ],
)
def test_names_in_a_zip_are_in_the_encoding_of_a_flag_or_a_warning(
    tmp_path, encoding, classes, option, is_known
):
    class Raw(zipfile.ZipInfo):
        def _encodeFilenameFlags(self):
            return self.filename.encode(encoding), self.flag_bits & ~0x800

    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for name in classes:
            packed.writestr(Raw(f"{name}/1.jpg"), b"x")
            packed.writestr(Raw(f"{name}\\2.jpg"), b"x")
    refs, skipped = listed(path, zip_encoding=option)
    assert skipped == ({} if is_known else {f"unknown_encoding: {path}": 4})
    assert ({ref.label for ref in refs.values()} == {*classes}) == is_known
    if option:
        with refused("zip_encoding", "a.zip'"):
            listed(path, zip_encoding="ascii")
    with refused("zip_encoding", "'hex'"):
        InputOptions("a.zip", zip_encoding="hex")


@given(st.binary(max_size=200), st.integers(0, 300), st.sampled_from([0, 8]))
def test_any_bytes_are_content_or_an_error(data, num_bytes, method):
    header = b"PK\x03\x04" + bytes([20, 0, 8, 0, method, 0]) + bytes(20)
    for begun in (data, header + data, header + data + bytes(ZIP_HEADER_BYTES)):
        try:
            read_zip_member(begun, num_bytes, 100)
        except ImageError as e:
            assert e.code in ("corrupt", "truncated", "too_many_bytes")


@pytest.mark.parametrize("where", [str, store_uri])
def test_members_of_an_archive_that_was_replaced_are_rejected(tmp_path, where):
    path = tar(tmp_path / "a.tar", "cat/1.jpg", "dog/2.jpg")
    refs, _ = listed(where(path))
    behind = {key: ref._replace(offset_bytes=10**6) for key, ref in refs.items()}
    assert {*contents(behind).values()} == {"truncated"}
    tar(path, "cat/3.jpg", "dog/4.jpg")  # with other pictures in the same ranges
    assert {*contents(refs).values()} == {"changed"}


def test_a_compressed_archive_that_was_replaced_is_not_unpacked(tmp_path):
    path = tmp_path / "packed" / "a.tar.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(tar(tmp_path / "a.tar", "cat/1.jpg").read_bytes()))
    (found,) = storage.list_folder(str(path.parent))
    path.write_bytes(gzip.compress(tar(tmp_path / "a.tar", "cat/1.jpg", "cat/2.jpg").read_bytes()))
    with refused("input", "a.tar.gz', which was replaced while it was read"):
        with archives.open_archive(str(path), found, str(tmp_path / "spool")):
            pass
    assert not list((tmp_path / "spool").iterdir())


@pytest.fixture
def read(monkeypatch):
    """The bytes of each read from a file of this machine."""
    counts = []

    class Counted(io.FileIO):
        def readinto(self, buffer):
            counts.append(super().readinto(buffer) or 0)
            return counts[-1]

    monkeypatch.setattr(
        storage, "open_read", lambda path, _: io.BufferedReader(Counted(path), 8192)
    )
    return counts


def test_of_a_local_tar_only_the_headers_are_read(tmp_path, read):
    tar(tmp_path / "a.tar", *(f"cat/{n}.jpg" for n in range(20)), data=b"x" * 100_000)
    with archives.open_archive(str(tmp_path / "a.tar")) as archive:
        assert len(list(archive.members())) == 20
    assert 0 < sum(read) < 400_000


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("{08..11}.tar", ["08.tar", "09.tar", "10.tar", "11.tar"]),
        ("{a,b}-{0..1}.tar", ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"]),
        ("{a}.tar", ["{a}.tar"]),
        ("s3://b/{1..2}/*.tar", ["s3://b/1/*.tar", "s3://b/2/*.tar"]),
    ],
)
def test_braces_are_expanded_as_a_shell_does(pattern, expected):
    assert expand_braces(pattern) == expected


def test_a_missing_archive_in_a_range_and_a_pipe_are_refused(tmp_path):
    tar(tmp_path / "0.tar", "cat/1.jpg")
    with refused("input", "1.tar'"):
        listed(f"{tmp_path}/{{0..1}}.tar", layout="class_folders")
    os.mkfifo(tmp_path / "1.tar")
    with refused("input", "1.tar'"):  # without waiting for who writes into the pipe
        listed(tmp_path / "1.tar")


def test_a_compressed_archive_is_never_read_from_its_beginning_again(tmp_path, read):
    names = [f"{number}.{ending}" for number in range(30) for ending in ("jpg", "json", "cls")]
    text = json.dumps({"a": random.Random(1).randbytes(5000).hex()})
    packed = gzip.compress(tar(tmp_path / "a.tar", *names, data=text.encode()).read_bytes(), 0)
    (tmp_path / "a.tgz").write_bytes(packed)
    assert schema_of(InputOptions(str(tmp_path / "a.tgz"))) is not None
    # Once to tell what it is, and once for its first samples.
    assert sum(read) <= 2 * len(packed)


def test_a_warning_names_archives_whose_part_names_become_classes(tmp_path):
    for name in ("photos-0001", "photos-0002"):
        tar(tmp_path / "parts" / f"{name}.tar", "1.jpg")
    told = {"part_as_class: photos-0001": 1, "part_as_class: photos-0002": 1}
    assert listed(in_folder(tmp_path / "parts"))[1] == told
    assert listed(in_folder(tmp_path / "parts", label="none"))[1] == {}
    tar(tmp_path / "classes" / "n01440764.tar", "1.jpg")
    assert listed(in_folder(tmp_path / "classes"))[1] == {}


def test_webdataset_samples_without_an_image_and_other_members_are_counted(tmp_path):
    members = ["0.jpg", "0.cls", "0.npy", "1.cls", "2.seg.png", "2.png", "2.cls"]
    refs, skipped = listed(tar(tmp_path / "a.tar", *members, data=b"cat"))
    assert set(refs) == {"0.jpg", "2.png"} and {ref.label for ref in refs.values()} == {"cat"}
    assert skipped == {"other_member": 2, "sample_without_image": 1}


SAMPLES = {
    f"{n:03d}.{ending}": f"{n % 2}".encode() for n in range(150) for ending in ("jpg", "cls")
}
SAMPLES |= {f"{n:03d}.json": json.dumps({"size": n, "o": {}}).encode() for n in range(150)}


def webdataset(path: pathlib.Path, names: list[str], files: dict[str, bytes]) -> pathlib.Path:
    if path.suffix == ".zip":
        options = {"compression": zipfile.ZIP_DEFLATED}
        return zipped(path, {name: files[name] for name in names}, **options)
    with tarfile.open(path, "w") as packed:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            packed.addfile(info, io.BytesIO(files[name]))
    return path


@pytest.mark.parametrize("form", ["tar", "zip"])
@pytest.mark.parametrize("order", ["sorted", "shuffled", "by ending", "with hidden files"])
def test_members_of_a_sample_belong_together_wherever_they_are(tmp_path, form, order):
    files, names = dict(SAMPLES), sorted(SAMPLES)
    if order == "shuffled":
        random.Random(1).shuffle(names)
    elif order == "by ending":
        names.sort(key=lambda name: name[3:])
    elif order == "with hidden files":
        files |= {hidden: b"\xff" for n in names for hidden in (f"._{n}", f"__MACOSX/._{n}")}
        names = [each for n in names for each in (f"._{n}", n, f"__MACOSX/._{n}")]
    path = webdataset(tmp_path / f"a.{form}", names, files)
    schema = schema_of(InputOptions(str(path)))
    assert schema and schema.warnings == ("the objects 'o' in .json members are left out",)
    refs, skipped = listed(path)
    assert {key: (ref.label, ref.columns) for key, ref in refs.items()} == {
        f"{n:03d}.jpg": (str(n % 2), {"size": n}) for n in range(150)
    }
    assert contents(refs) == {name: SAMPLES[name] for name in refs}
    assert skipped == ({"hidden": 450, "system_file": 450} if "hidden" in order else {})


def test_samples_follow_the_rule_of_webdataset_for_names(tmp_path):
    names = ["a.b/0.jpg", "a.b/0.cls", "train/1.jpg", "train/1.cls", "train/1.cls"]
    refs, skipped = listed(tar(tmp_path / "a.tar", *names, data=b"cat"))
    splits = {key: ref.split for key, ref in refs.items()}
    assert splits == {"a.b/0.jpg": None, "train/1.jpg": "train"}
    assert skipped == {"replaced_member": 1, "given_split: train": 1}
    with refused("input", "a.tar'", "first dot"):
        listed(tar(tmp_path / "a.tar", "x.0.jpg", "x.0.cls", data=b"cat"))


@pytest.mark.parametrize("form", ["tar", "zip", "folder"])
def test_json_of_a_labelling_program_is_no_label(tmp_path, form):
    said = json.dumps({"label": "x", "shapes": [{"label": "y"}]}).encode()
    files = {f"{folder}/1.jpg": b"x" for folder in ("cat", "dog")}
    files |= {f"{folder}/1.json": said for folder in ("cat", "dog")}
    path = tmp_path / f"a.{form}"
    if form == "folder":
        put(path, *files)
    else:
        webdataset(path, sorted(files), files)
        assert labels(path, label_column="label", columns=())["cat/1.jpg"] == ("x", None)
    refs, skipped = listed(path)
    assert {ref.label for ref in refs.values()} == {"cat", "dog"}
    told = {} if form == "folder" else {f"unread_texts: {path}": 1}
    assert skipped == {"not_an_image_name": 2} | told


@pytest.mark.parametrize("layout", ["webdataset", "flat"])
def test_a_layout_is_never_silently_another_one(tmp_path, layout):
    put(tmp_path / "set", "a/cat/1.jpg", "b/dog/1.jpg")
    packed = shutil.make_archive(f"{tmp_path}/set", "tar", tmp_path / "set")
    argument = {"webdataset": "layout", "flat": "input"}[layout]
    with refused(argument, f"{tmp_path}/set'"):
        listed(tmp_path / "set", layout=layout)
    with refused("layout" if layout == "webdataset" else "input", f"{tmp_path}/set/*/*/*.jpg'"):
        listed(f"{tmp_path}/set/*/*/*.jpg", layout=layout)
    with refused("input", packed):
        listed(packed, layout=layout)


def test_an_archive_without_an_image_says_what_it_holds(tmp_path):
    path = tmp_path / "a.zip"
    whole = zipped(path, {"cat/1.jpg": b"1", "cat/2.jpg": b"2"}).read_bytes()
    central = whole.index(b"PK\1\2"), whole.rindex(b"PK\1\2")
    for place, value, words in ((8, 1, "2 members with a password"), (10, 9, "Deflate64")):
        changed = bytearray(whole)
        for at in central:
            changed[at + place] |= value
        path.write_bytes(changed)
        with refused("input", "a.zip'", words, "unpack it"):
            listed(path)
    for names, words in (
        (["/etc/1.jpg", "../2.jpg"], "2 members with an absolute path"),
        (["train.zip", "b.txt"], "1 member that are archives, 1 member with names of no images"),
        (["1.heic"], "1 member with names of no images"),
        ([special("1.jpg", tarfile.SYMTYPE)], "1 member that are links"),
        ([], "it is empty"),
    ):
        with refused("input", "b.tar'", words):
            listed(tar(tmp_path / "b.tar", *names), extensions=(".jpg",))
    tar(tmp_path / "in" / "docs.tar", "README")
    tar(tmp_path / "in" / "cat.tar", "1.jpg", "1.zip")
    skipped = listed(f"{tmp_path}/in/*.tar")[1]
    assert {f"archive_without_image: {tmp_path}/in/docs.tar", "archive_inside"} < skipped.keys()
    tar(tmp_path / "in" / "dog.tar", "/1.jpg")
    with refused("input", "dog.tar'"):
        listed(f"{tmp_path}/in/*.tar")


@pytest.mark.parametrize(
    ("name", "begin", "words"),
    [
        ("a.tgz", "tar", "a plain tar, as its first bytes say; expected"),
        ("a.tar", "gz", "rename it to NAME.tar.gz"),
        ("a.zip", b"Rar!\x1a\x07", "unpack it"),
        ("a.tar.gz", b"\x28\xb5\x2f\xfd", "Zstandard"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        ("a.tar.zst", b"\x28\xb5\x2f\xfd", "unpack it"),
    ],
)
def test_a_file_of_another_kind_is_known_by_its_first_bytes(tmp_path, name, begin, words):
    data = tar(tmp_path / "whole.tar", "cat/1.jpg").read_bytes()
    data = {"tar": data, "gz": gzip.compress(data)}.get(begin, begin)
    (tmp_path / name).write_bytes(data)
    with refused("input", f"{tmp_path}/{name}'", words):
        listed(tmp_path / name, str(tmp_path / "spool"))


def test_damaged_json_of_a_webdataset_is_named_with_its_sample(tmp_path):
    path = tar(tmp_path / "a.tar", "0.jpg", "0.json", data=b"[1]")
    with refused("", "a.tar: 0.json"):
        listed(path)
