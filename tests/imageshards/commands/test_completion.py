"""What is printed for a shell really completes in it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from imageshards.__main__ import main
from imageshards.commands import completion

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("completion") / "imageshards.bash"
    path.write_text(completion.completion_script("bash"), encoding="utf-8")
    return str(path)


def completed(script: str, folder: str, *words: str) -> set[str]:
    """What a bash that has sourced the script offers for the last of the words."""
    listed = " ".join(f"'{word}'" for word in words)
    code = (
        f"source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}\n"
        "complete -p imageshards > /dev/null || exit 1\n"
        'function=$(complete -p imageshards | sed "s/.*-F \\([^ ]*\\).*/\\1/")\n'
        f'$function imageshards "{words[-1]}" "{words[-2]}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return {line.strip() for line in done.stdout.splitlines() if line.strip()}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["imageshards", "tr"], {"train"}),
        (["imageshards", "ex"], {"export", "export-index"}),
        (["imageshards", "build", "--im"], {"--image_size", "--image_column"}),
        (["imageshards", "train", "--learning"], {"--learning_rate"}),
        (["imageshards", "train", "--data", "d", "--augment", "s"], {"strong"}),
        (["imageshards", "build", "--output", ""], {"photos"}),
        (["imageshards", "verify", ""], {"photos"}),
        (["imageshards", "build", "--input", ""], {"photos", "list.csv"}),
    ],
)
def test_bash_completes_commands_flags_choices_and_paths(bash_script, tmp_path, words, offered):
    (tmp_path / "photos").mkdir()
    (tmp_path / "list.csv").touch()
    assert completed(bash_script, str(tmp_path), *words) == offered


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_shell_has_a_script(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "learning_rate" in script and "export-index" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
