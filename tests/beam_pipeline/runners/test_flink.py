"""What is known of a Flink cluster before a job is submitted, each mistake one sentence."""

from __future__ import annotations

import io
import pathlib
import time
import zipfile

import apache_beam
import pytest
from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions
from apache_beam.utils.subprocess_server import JavaJarServer

from beam_pipeline import flink as fetch
from beam_pipeline.runners import flink, job_server
from imageshards.errors import UserError
from tests.support.flink_stand_in import overview, serving

pytestmark = pytest.mark.process


def a_jar() -> bytes:
    """The smallest jar: a zip without files."""
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    return buffer.getvalue()


A_JAR = a_jar()
JAR = f"beam-runners-flink-2.2-job-server-{apache_beam.__version__}.jar"


@pytest.fixture
def java(tmp_path) -> pathlib.Path:
    return launcher(tmp_path / "java", "echo 'openjdk version \"17.0.15\"' >&2")


def launcher(path: pathlib.Path, script: str) -> pathlib.Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def sentence(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_a_cluster_says_what_it_has():
    reply = overview(version="1.20.3", task_managers=3, slots=7, free=5)
    with serving({"/overview": reply}) as master:
        found = flink.overview(master)
        assert found == flink.overview(f"http://{master}/")
    assert found == flink.Overview("1.20", task_managers=3, slots=7, free_slots=5)
    assert found.slots_of_one == 3


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ({"/overview": b"<html>"}, "not Flink's"),
        ({"/overview": b"[]"}, "not Flink's"),
        ({"/overview": b'{"version": 1}'}, "not Flink's"),
        ({"/": b"{}"}, "status 404"),
        ({"/overview": None}, "no reply within 0.3 s"),
    ],
)
def test_what_is_no_flink_is_one_sentence_within_the_time_limit(replies, words, monkeypatch):
    monkeypatch.setattr(flink, "REST_TIMEOUT_SEC", 0.3)
    begun = time.monotonic()
    with serving(replies) as master:
        with pytest.raises(UserError) as error:
            flink.overview(master)
        assert time.monotonic() - begun < 5
    text = sentence(error)
    assert words in text
    assert repr(master) in text
    assert "JobManager" in text


def test_nobody_at_the_master_is_one_sentence():
    with serving({}) as master:
        pass  # its port is free again
    with pytest.raises(UserError) as error:
        flink.preflight(PipelineOptions(["--flink_master", master]))
    assert "Connection refused" in sentence(error)


def test_another_version_is_one_sentence(java):
    with serving({"/overview": overview(version="2.0.1")}) as master:
        options = PipelineOptions(["--flink_master", master, "--flink_version=2.2"])
        with pytest.raises(UserError) as error:
            flink.preflight(options)
    assert "--flink_version received 2.2" in sentence(error)
    assert "runs Flink 2.0" in sentence(error)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'java version \"1.8.0_392\"' >&2", "is Java 8"),
        ("echo hello", "is no Java"),
        ("sleep 60", "TimeoutExpired"),
        (None, "is not here"),
    ],
)
def test_a_java_that_will_not_do_is_one_sentence(script, words, tmp_path, monkeypatch):
    monkeypatch.setattr(job_server, "JAVA_TIMEOUT_SEC", 0.5)
    path = tmp_path / "old" / "java"
    path.parent.mkdir()
    if script is not None:
        launcher(path, script)
    with pytest.raises(UserError) as error:
        flink.preflight(
            PipelineOptions(["--flink_master=[local]", f"--job_server_java_launcher={path}"])
        )
    assert words in sentence(error)
    assert "Java 11 or later" in sentence(error)


@pytest.fixture
def options(tmp_path, java, monkeypatch):
    """Options of a job whose jar is looked for at a place of ours; the place's replies."""
    replies: dict[str, bytes | None] = {}
    monkeypatch.setattr(job_server, "DOWNLOAD_TIMEOUT_SEC", 0.5)
    with serving(replies) as place:
        for repository in ("MAVEN_CENTRAL_REPOSITORY", "GOOGLE_MAVEN_MIRROR"):
            monkeypatch.setattr(JavaJarServer, repository, f"http://{place}/jars")
        given = [
            "--flink_master=[local]",
            "--flink_version=2.2",
            f"--job_server_java_launcher={java}",
            f"--jar_cache_dir={tmp_path / 'cache'}",
        ]
        yield PipelineOptions(given), replies


def place_of_jar() -> str:
    return f"/jars/org/apache/beam/{JAR.rpartition('-')[0]}/{apache_beam.__version__}/{JAR}"


def test_the_jar_is_downloaded_once_and_kept(options, tmp_path):
    asked, replies = options
    replies[place_of_jar()] = A_JAR
    flink.preflight(asked)
    kept = tmp_path / "cache" / JAR
    assert kept.read_bytes() == A_JAR
    assert asked.view_as(FlinkRunnerOptions).flink_job_server_jar == str(kept)
    assert [path.name for path in kept.parent.iterdir()] == [JAR]
    replies.clear()
    flink.preflight(asked)


@pytest.mark.parametrize(("reply", "words"), [("missing", "404"), (None, "no reply within 0.5 s")])
def test_a_jar_that_cannot_be_had_is_one_sentence(reply, words, options, tmp_path):
    asked, replies = options
    if reply is None:
        replies[place_of_jar()] = None
    with pytest.raises(UserError) as error:
        flink.preflight(asked)
    text = sentence(error)
    assert words in text
    assert f"put {JAR} into {tmp_path / 'cache'}" in text
    assert "--flink_job_server_jar" in text


def test_the_jar_can_be_fetched_beforehand(options, tmp_path, capsys):
    _, replies = options
    given = ["--flink_version", "2.2", "--jar_cache_dir", str(tmp_path / "cache")]
    assert fetch.main(given) == 2
    assert (
        "\npython -m beam_pipeline.flink: Beam's job server for Flink 2.2 could not"
        in capsys.readouterr().err
    )
    replies[place_of_jar()] = A_JAR
    assert fetch.main(given) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'cache' / JAR}\n"


def test_half_a_jar_is_none(java, tmp_path, monkeypatch):
    monkeypatch.setattr(job_server, "DOWNLOAD_TIMEOUT_SEC", 0.5)
    with serving({"/half.jar": b"half"}, length=8) as place:
        given = [
            "--flink_master=[local]",
            f"--job_server_java_launcher={java}",
            f"--flink_job_server_jar=http://{place}/half.jar",
            f"--jar_cache_dir={tmp_path / 'cache'}",
        ]
        with pytest.raises(UserError, match="could not be downloaded"):
            flink.preflight(PipelineOptions(given))
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_jar_that_was_named_is_used_and_must_be_there(options, tmp_path):
    asked, _ = options
    flags = asked.view_as(FlinkRunnerOptions)
    flags.flink_job_server_jar = str(tmp_path / "none.jar")
    with pytest.raises(UserError, match=r"--flink_job_server_jar received '.*none.jar'.*2\.2-job"):
        flink.preflight(asked)
    (tmp_path / "none.jar").write_bytes(b"")
    flink.preflight(asked)


def test_with_a_job_server_of_its_own_nothing_is_looked_for():
    flink.preflight(PipelineOptions(["--flink_master=nowhere:1", "--job_endpoint=localhost:1"]))
