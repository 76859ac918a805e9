"""The report command: writes the report, prints a table, fails in one sentence."""

import pytest

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
        ["classes", "2"],
        ["listed", "33"],
        ["rejects", "3", "(truncated", "2,", "empty", "1)"],
        [],
        ["wrote"],
        *([str(path)] for path in paths),
    ]


@pytest.mark.parametrize(
    ("made", "argv", "said"),
    [
        (False, ["{0}"], "where there is no manifest.json"),
        (True, ["{0}"], "could not be written"),
        (False, [], "The following arguments are required: DIR; see imageshards report --help."),
    ],
    ids=["no data set", "a file in the way", "nothing"],
)
def test_what_cannot_be_shown_is_one_sentence(tmp_path, made, argv, said, capsys):
    if made:
        Dataset(tmp_path)
        (tmp_path / "report").write_text("in the way")
    assert main([word.format(tmp_path) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("imageshards report: ") and said in err
    assert err.count("\n") == 1 and not out
