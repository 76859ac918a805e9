"""What is wrong with a page is noticed, with the place."""

import pytest
from sybil import Document
from sybil.example import SybilFailure

from tests.documentation.collection import close, mistake_of_form, parse
from tests.documentation.page import Page

pytestmark = pytest.mark.process

NOT_RUN = "<!-- not run: no cluster -->\n"


def fence(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```", ""])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (fence("", "imageshards build"), "a fence with the language ''; expected one of"),
        (fence("json", "{'a': 1}"), "no json: Expecting property name"),
        (fence("console", "ls"), "a transcript without a command"),
        (NOT_RUN + fence("bash", "for a in b"), "no shell: "),
        (NOT_RUN + fence("python", "import"), "no python: "),
        (NOT_RUN + fence("bash", "imageshards bild x"), "'bild' is no command; expected one of"),
        (NOT_RUN + fence("bash", "srun python -m trainer --data d --epochs few"), "--epochs"),
        (NOT_RUN + fence("bash", "imageshards train --data d --runner Flink"), "'--runner' is no"),
        (NOT_RUN + fence("bash", "cd x && imageshards build \\", "  --inputs a …"), "--inputs"),
    ],
)
def test_a_mistake_in_the_form_of_a_block(text: str, words: str) -> None:
    (region,) = parse(Document(f"# Page\n\n{text}", "page.md"))
    assert words in str(mistake_of_form(region.parsed))


WRONG = "\n".join(
    [
        "# A page\n",
        fence("console", "$ cat here.txt \\", "    | tr a-z A-Z", "HERE"),
        fence("python", "import imageshards", "folder = 'shards'"),
        fence("python", "import absent_package"),
        fence("python", "def look():", "    imageshards.load_manifest(folder)", "", "look()"),
        fence("bash", "echo nobody comes here"),
        fence("bash", "echo before", "imageshards verify no_folder"),
    ]
)


def test_a_wrong_block_fails_with_its_place_and_its_output(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.documentation.page.MAY_BE_ABSENT", {"absent_package"})
    path = tmp_path / "page.md"
    path.write_text(WRONG)
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "here.txt").write_text("here")
    document = Document.parse(str(path), parse)
    document.namespace["page"] = Page(str(path), tmp_path, tmp_path / "page")
    try:
        transcript, good, absent, wrong, behind, command = document.examples()
        transcript.evaluate()
        good.evaluate()
        with pytest.raises(pytest.skip.Exception, match="absent_package is not installed"):
            absent.evaluate()
        with pytest.raises(SybilFailure) as failure:
            wrong.evaluate()
        with pytest.raises(pytest.skip.Exception, match="the block in line 18 failed"):
            behind.evaluate()
        del document.namespace["failed"]
        with pytest.raises(SybilFailure) as refused:
            command.evaluate()
    finally:
        close(document.namespace)
    assert f'{path}", line 20, in look' in failure.value.result
    assert "UserError: path received 'shards'" in failure.value.result
    words = ("page.md:29\n", "imageshards verify no_folder\n", "before\n", "exit code 2")
    assert [each for each in words if each not in refused.value.result] == []
