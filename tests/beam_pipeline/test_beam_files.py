"""Beam's flags about stores act in the main process, in those it forks, and in Beam's workers.

Each is shown by what it changes: a build that ends otherwise, or another caller at the store.
"""

import json
import pathlib
from collections.abc import Iterator

import apache_beam as beam
import pytest
from apache_beam.internal import pickler
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import HadoopFileSystemOptions, PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

import beam_pipeline as bp
from beam_pipeline.beam_files import StoreConfig
from imageshards import storage
from imageshards.errors import StorageError
from tests.support import builds
from tests.support.google_front import GoogleFront
from tests.support.http_stand_in import self_signed
from tests.support.store_servers import store_server
from tests.support.stores import StoreFileSystem, store_uri

pytestmark = pytest.mark.process

ACCOUNT = "impersonate_service_account"


@pytest.fixture(autouse=True)
def own_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of no other test, and with no flags of an earlier pipeline."""
    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    storage.forget_clients()
    yield
    storage.forget_clients()


@pytest.mark.parametrize(
    ("flags", "s3", "gs"),
    [
        (
            "--runner=X --s3_endpoint_url=http://x --s3_access_key_id me",
            {"endpoint_url": "http://x", "access_key_id": "me"},
            {},
        ),
        ("--no_auth --s3_disable_ssl", {"use_ssl": False}, {"no_auth": True}),
        ("--s3_verify=false --runner X", {"verify": False}, {}),
        (f"--{ACCOUNT} a,b --s3_verify=True", {"verify": True}, {ACCOUNT: "a,b"}),
        ("--s3_verify", {}, {}),  # refused with all other flags, later
    ],
)
def test_flags_of_a_command_line_and_of_a_pipeline_are_settings_of_clients(flags, s3, gs):
    client = storage.backend("s3://photos")
    given = [] if flags == "--s3_verify" else flags.replace("X", "FnApiRunner").split()
    created = beam.Pipeline(options=PipelineOptions(given)) | beam.Create([0])
    of_pipeline = StoreConfig.of_pipeline(created).settings()
    # Beam keeps it from workers.
    assert of_pipeline["gs"].keys() == gs.keys() - {ACCOUNT}
    settings = StoreConfig.of_arguments(flags.split()).settings()
    assert (settings["s3"], settings["gs"]) == (s3, gs) and of_pipeline["s3"] == s3
    with storage.using(settings):
        assert (storage.backend("s3://photos") is client) == (not s3)
        (there,) = storage.map_concurrently(storage.backend, ["s3://photos"])
        assert there is storage.backend("s3://photos")
    assert storage.backend("s3://photos") is client


def test_other_file_systems_of_beam_are_read_and_not_written(tmp_path, capsys):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "ten").write_bytes(b"0123456789")
    folder = store_uri(tmp_path)
    path = f"{folder}/deep/ten"
    assert (storage.read(path), storage.read(path, 3)) == (b"0123456789", b"012")
    assert [storage.read_range(path, *span) for span in ((3, 7), (8, 99))] == [b"3456", b"89"]
    found = storage.stat(path)
    assert found and [*storage.files_below(folder)] == [found] and found.size_bytes == 10
    assert storage.stat(f"{folder}/deep") is None and storage.is_folder(f"{folder}/deep")
    with pytest.raises(FileNotFoundError):
        storage.read(f"{folder}/none")
    with pytest.raises(OSError, match="Read-only"):
        storage.write(path, b"")
    assert builds.build("--input", folder, "--output", "teststore:///out") == 2
    assert "--output received 'teststore:///out', on a file system that" in capsys.readouterr().err


class _ConfiguredFileSystem(StoreFileSystem):
    """Like Beam's `hdfs://`, which no process reaches without the flags of a command."""

    @classmethod
    def scheme(cls) -> str:
        return "configuredstore"

    def __init__(self, pipeline_options: PipelineOptions | None):
        if pipeline_options is None:
            raise ValueError("pipeline_options is not set")
        options = pipeline_options.view_as(HadoopFileSystemOptions)
        if options.hdfs_host != "here" or not options.hdfs_full_urls:
            raise ValueError("the flags did not come here")
        super().__init__(pipeline_options)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return builds.class_folders(tmp_path_factory.mktemp("in") / "photos", {"cat": 8, "dog": 8})


def read_from(bucket: str, output: pathlib.Path, *flags: str) -> int:
    """The exit code of a build whose main process lists, and whose others read, a bucket."""
    shards = ("--splits", "train=1", "--num_shards", "2", "--no_report")
    return builds.build("--input", f"{bucket}/photos", "--output", output, *shards, *flags)


def test_flags_of_other_file_systems_reach_the_client_and_the_steps(photos, tmp_path):
    given = ["--hdfs_host", "here", "--hdfs_full_urls", "--hdfs_port=1", "--plan_only"]
    assert read_from(f"configuredstore://{photos.parent}", tmp_path / "out", *given) == 0


class TestS3:
    PATH = "s3://pictures/photos/cat/cat 0.jpg"

    @pytest.fixture(scope="class")
    def certificate(self, tmp_path_factory, photos) -> Iterator[pathlib.Path]:
        """Of a store that is reached by https, which nobody knows."""
        path = tmp_path_factory.mktemp("tls") / "s3.pem"
        path.write_bytes(self_signed())
        with store_server("s3", certificate=path) as server, server.environment():
            storage.copy_folder(str(photos), f"{server.bucket('pictures')}/photos")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AWS_ENDPOINT_URL", server.https_url)
                yield path

    @pytest.mark.parametrize("is_in_worker", [False, True])
    @pytest.mark.parametrize(
        ("verify", "words"),
        [("true", "certificate"), ("false", ""), ("CERTIFICATE", ""), ("no.pem", "'no.pem'")],
    )
    @pytest.mark.one_row
    def test_verify_names_certificates(self, certificate, verify, words, is_in_worker, monkeypatch):
        flags = [f"--s3_verify={verify.replace('CERTIFICATE', str(certificate))}"]

        def read(path: str) -> bytes:
            with storage.using(StoreConfig.of_arguments(flags).settings()):
                return storage.read(path)

        if is_in_worker:
            created = beam.Pipeline(options=PipelineOptions(flags)) | beam.Create([0])
            # As Beam sends it to a worker.
            step = pickler.dumps(StoreConfig.of_pipeline(created).step(storage.read))
            monkeypatch.setattr(FileSystems, "_pipeline_options", None)
            read = pickler.loads(step)
        for _ in range(2):  # the second goes past the library
            if not words:
                assert read(self.PATH) == builds.jpeg(10_000)
            else:
                with pytest.raises(StorageError, match=words):
                    read(self.PATH)
        with pytest.raises(StorageError, match="certificate"):
            storage.read(self.PATH)

    @pytest.mark.usefixtures("certificate")
    @pytest.mark.long
    def test_all_processes_of_a_build_obey(self, tmp_path, capsys):
        assert read_from("s3://pictures", tmp_path / "out") == 2
        assert "certificate" in capsys.readouterr().err
        for more in (["--plan_only", "--runner=FlinkRunner"], []):
            assert read_from("s3://pictures", tmp_path / "out", "--s3_verify=false", *more) == 0
        with pytest.raises(StorageError, match="certificate"):
            storage.read(self.PATH)

    @pytest.mark.usefixtures("certificate")
    @pytest.mark.long
    def test_store_options_of_a_custom_pipeline_end_with_the_pipeline(self, tmp_path):
        options = bp.ShardOptions(image=bp.ImageOptions(height_px=8, width_px=8))
        obedient = PipelineOptions(["--s3_verify=false"])
        staging, output = f"{tmp_path}/staging", "s3://pictures/set"
        write = bp.WriteBalancedTFRecord(f"{output}/", options, staging=staging)
        with beam.Pipeline("FnApiRunner", options=obedient) as pipeline:
            listed = pipeline | bp.ListImages(bp.InputOptions("s3://pictures/photos"))
            batches = listed.batches | bp.AssignSplits(options)
            columns = batches | bp.AnalyseColumns(f"{staging}/transform", options=options)
            planned = columns.batches | bp.PlanShards(options, features=columns.features)
            files = planned.units | write
            assert_that(files | bp.ReadRejects(write), equal_to([]))
        with pytest.raises(StorageError, match="certificate"):
            storage.read(self.PATH)


def test_the_caller_of_gs_is_who_the_flags_say(photos, tmp_path, monkeypatch, capsys):
    """Google's addresses answer everybody; who asked is known."""
    key, login = tmp_path / "key.json", dict.fromkeys(("client_id", "client_secret"), "x")
    key.write_text(json.dumps(login | {"type": "authorized_user", "refresh_token": "r"}))
    with store_server("gs") as emulator, GoogleFront(emulator.port, tmp_path) as front:
        with emulator.environment():
            storage.copy_folder(str(photos), f"{emulator.bucket('pictures')}/photos")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        for name, value in front.environ.items():
            monkeypatch.setenv(name, value)
        impersonate = f"--{ACCOUNT}=boss@x.example"
        callers = {"": "user", "--no_auth": "", impersonate: "boss@x.example"}
        for flag, caller in callers.items():
            front.callers.clear()
            with storage.using(StoreConfig.of_arguments([flag]).settings()):
                storage.read("gs://pictures/photos/cat/cat 0.jpg")
            assert set(front.callers) == {caller}
        front.callers.clear()
        out = tmp_path / "out"
        assert read_from("gs://pictures", out, impersonate) == 0, capsys.readouterr().err
        assert set(front.callers) == {"boss@x.example"}
        assert len(front.callers) >= 16  # all pictures were read by this caller
