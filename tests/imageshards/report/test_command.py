"""The inspect command: writes the report, prints a table, fails in one sentence."""

from imageshards.report.command import main, summary_text
from tests.support.dataset_factory import Dataset


def test_the_command_writes_the_report_and_says_where(tmp_path, capsys):
    dataset = Dataset(tmp_path / "data", rejects={"truncated": 2})
    assert main([str(dataset.directory)]) == 0
    printed = capsys.readouterr().out
    for name in ("index.html", "contact_sheet-train.png", "contact_sheet-validation.png"):
        path = dataset.directory / "report" / name
        assert path.stat().st_size > 0
        assert str(path) in printed
    assert summary_text(dataset.manifest) in printed


def test_the_table_shows_splits_classes_and_rejects(tmp_path):
    dataset = Dataset(tmp_path, rejects={"truncated": 2, "empty": 1})
    dataset.manifest["splits"]["train"]["shards"][0]["num_records"] = 1234
    lines = summary_text(dataset.manifest).splitlines()
    assert lines[0].split() == ["split", "shards", "records", "min/shard", "max/shard", "MB"]
    assert lines[2].split() == ["train", "3", "18", "6", "1,234", "0.0"]
    assert lines[3].split() == ["validation", "2", "12", "6", "6", "0.0"]
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[4:] == [
        "classes  2",
        "listed   33",
        "rejects  3 (truncated 2, empty 1)",
    ]


def test_a_folder_without_manifest_is_one_sentence(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("imageshards report: ")
    assert output.err.count("\n") == 1


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path, capsys):
    Dataset(tmp_path)
    (tmp_path / "report").write_text("in the way")
    assert main([str(tmp_path)]) == 2
    assert "could not be written" in capsys.readouterr().err


def test_a_missing_argument_is_one_sentence(capsys):
    assert main([]) == 2
    said = "The following arguments are required: DIR; see imageshards report --help.\n"
    assert capsys.readouterr().err == f"imageshards report: {said}"
