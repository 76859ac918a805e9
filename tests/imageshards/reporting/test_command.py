"""The report: as a command it says where it is, as a function it returns that."""

import imageshards as ims
from imageshards.reporting.command import main
from tests.support.dataset_factory import Dataset


def test_the_report_is_written_and_says_where(tmp_path, capsys):
    Dataset(tmp_path, rejects={"truncated": 2, "empty": 1})
    assert main([str(tmp_path)]) == 0
    page = tmp_path / "report" / "index.html"
    assert [*page.parent.iterdir()] == [page]
    (page.parent / "index.html.tmp-863179ee").touch()  # as a killed command leaves it
    assert capsys.readouterr().out == f"wrote {page}\n"
    page.unlink()
    assert ims.report(tmp_path) == str(page) and [*page.parent.iterdir()] == [page]
