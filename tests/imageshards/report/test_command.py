"""The report command: writes the report, prints a table."""

from imageshards.report.command import main
from tests.support.dataset_factory import Dataset


def test_the_command_writes_the_report_and_says_where(tmp_path, capsys):
    Dataset(tmp_path, rejects={"truncated": 2, "empty": 1})
    assert main([str(tmp_path)]) == 0
    names = ("index.html", "contact_sheet-train.png", "contact_sheet-validation.png")
    paths = [tmp_path / "report" / name for name in names]
    assert all(path.stat().st_size for path in paths)
    lines = capsys.readouterr().out.splitlines()
    assert len({len(line) for line in lines[:4]}) == 1
    assert [line.split() for line in lines] == [
        ["split", "shards", "records", "min/shard", "max/shard", "MB"],
        lines[1].split(),
        ["train", "3", "18", "6", "6", "0.0"],
        ["validation", "2", "12", "6", "6", "0.0"],
        [],
        ["wrote"],
        *([str(path)] for path in paths),
    ]
