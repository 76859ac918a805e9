"""Builds whose originals are in a store: the bytes of the same build from this machine."""

import pytest

from beam_pipeline.images.read import read_images
from imageshards import storage
from imageshards.errors import ImageError
from tests.support.builds import build, class_folders, manifest, rejects_of, shard_bytes
from tests.support.errors import refused
from tests.support.listings import listed
from tests.support.store_servers import store_server

pytestmark = pytest.mark.process

FLAGS = ("--image_size", "32", "--num_shards", "train=3,validation=1", "--no_report")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return class_folders(tmp_path_factory.mktemp("photos") / "in", {"cat": 16, "dog": 16})


@pytest.fixture(scope="module")
def here(photos):
    output = photos.parent / "local"
    assert build("--input", photos, "--output", output, *FLAGS) == 0
    return output


@pytest.fixture(scope="module", params=["s3", pytest.param("gs", marks=pytest.mark.long)])
def server(request):
    with store_server(request.param) as running, running.environment():
        yield running


@pytest.fixture(scope="module")
def there(server, photos):
    folder = server.bucket() + "/deep/photos"
    storage.copy_folder(str(photos), folder)
    return folder


@pytest.mark.long
def test_no_row_of_a_table_ends_a_build_but_a_store_that_fails_for_all(
    server, there, tmp_path, capfd
):
    scheme = server.scheme
    wrong = {f"{scheme}://_bad/x.jpg": "not_found", f"{scheme}:///x.jpg": "not_found",
             f"{scheme}://a b/x.jpg": "not_found", f"{scheme}://{'x' * 300}/x.jpg": "",
             f"{scheme}://no-such-bucket/x.jpg": "bucket_unusable"}  # fmt: skip
    good = [found.path for found in storage.files_below(there)][:19]
    rows = tmp_path / "rows.csv"
    lines = [f"{path},{'ab'[n % 2]}" for n, path in enumerate([*good, *wrong])]
    rows.write_text("\n".join(["image,label", *lines]) + "\n")
    flags = ("--image_size", "16", "--no_report", "--max_reject_fraction", "0.5")
    assert build("--input", rows, "--output", tmp_path / "out", *flags) == 0
    found = {key: row["reason"] for key, row in rejects_of(tmp_path / "out").items()}
    assert found.keys() == wrong.keys()
    assert all(found[key] == reason for key, reason in wrong.items() if reason)
    missing = f"{scheme}://no-such-bucket"
    for count, more in ((20, ()), (3, ("--num_shards", "1"))):
        lines = [f"{missing}/{n}.jpg,{'ab'[n % 2]}" for n in range(count)]
        rows.write_text("\n".join(["image,label", *lines]) + "\n")
        flags = ("--image_size", "16", "--splits", "train=1", *more)
        assert build("--input", rows, "--output", tmp_path / "none", *flags) == 2
        assert f"{missing} names a bucket that does not exist" in capfd.readouterr().err


@pytest.mark.slow
def test_only_lasting_errors_of_a_store_end_a_build(server, here, there, tmp_path, capfd):
    output = tmp_path / "out"
    server.fail(403, times=10**6, matching=".jpg")
    server.fail(403, times=10**6, matching="list-type=2&prefix=&max")  # what probes a bucket
    server.fail(403, times=10**6, matching="/o?maxResults=1&projection=noAcl&prefix=&")
    assert build("--input", there, "--output", output, *FLAGS) == 2
    said = capfd.readouterr().err
    assert "refused (403)" in said and "Traceback" not in said
    assert not (output / "manifest.json").exists()

    server.heal()
    for n in range(3):
        server.fail([429, 503, "reset"][n], times=2, matching=f"cat%20{n}.jpg")
        server.fail([503, "reset", 500][n], times=1, matching=f"dog%20{n}.jpg")
    server.clear()
    capfd.readouterr()
    assert build("--input", there, "--output", output, *FLAGS) == 0
    assert shard_bytes(output) == shard_bytes(here)
    assert manifest(output)["fingerprint"] == manifest(here)["fingerprint"]
    asked = server.requests()
    assert f"stores: {len(asked)} requests, 9 of them sent again;" in capfd.readouterr().out
    failed = [a for a in asked if a.status not in (200, 206, 404)]  # it is no dataset
    images = [a for a in asked if ".jpg" in a.target and a not in failed]
    assert len(failed) == 9 and len(images) == 32  # one request for each
    # The bucket, whether the folder holds archives, a look at each of two folders, the listing.
    assert len(asked) - len(images) - len(failed) <= 11


def test_one_object_that_fails_for_good_is_a_row_of_the_quarantine(server, there):
    refs = [*listed(there)[0].values()][:10]
    refs[:3] = [ref._replace(size_bytes=-1) for ref in refs[:3]]
    for n, status in enumerate((403, 404, 400)):
        name = refs[n].key.replace(" ", "%20").rpartition("/")[2]
        server.fail(status, times=10**6, matching=name)
    small = min(r.size_bytes for r in refs[4:])
    codes: list = ["permission_denied", "not_found", "read_error"]
    codes += [r.size_bytes if r.size_bytes <= small else "too_many_bytes" for r in refs[3:]]
    unknown = [ref._replace(size_bytes=-1) for ref in refs]  # as a table gives them
    for given in (refs, unknown):
        read = [data for _, data in read_images(given, max_bytes=small)]
        assert [d.code if isinstance(d, ImageError) else len(d) for d in read] == codes


@pytest.mark.parametrize("name", ["no-such-bucket/photos", "{}/nothing", "{}/rows.csv"])
def test_a_missing_bucket_folder_or_table_is_refused(server, there, name):
    uri = f"{server.scheme}://{name.format(there.split('/')[2])}"
    with refused(None, uri):
        listed(uri)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["1.jpg", "10/2é.jpg", "10/a.jpg", "2é.jpg", "é.jpg"]),
        ("/*.jpg", ["1.jpg", "2é.jpg", "é.jpg"]),
        ("/1*/*", ["10/2é.jpg", "10/a.jpg"]),
    ],
)
def test_a_flat_folder_or_glob_is_listed_by_few_requests(server, pattern, expected):
    root = f"{server.bucket()}/in"
    for name in ("1.jpg", "10/", "10/a.jpg", "10/2é.jpg", "10/b.txt", "2é.jpg", "é.jpg", ".h.jpg"):
        storage.write(f"{root}/{name}", b"x")
    storage.write(f"{root}-else/1.jpg", b"x")
    server.clear()
    found, _ = listed(root + pattern, layout="flat", label_regex=r"(.)\.")
    assert [*found] == expected
    assert len(server.requests()) == 3  # for the bucket, a manifest.json, and the names
