"""Private names of Keras and TensorFlow are used in the few files that ARCHITECTURE.md names."""

import pathlib
import re

import trainer

TRAINER = pathlib.Path(trainer.__file__).parent
USERS = {"models/keras_internals.py", "models/step.py", "training/loop.py", "training/saved_run.py"}
# Of the standard library.
PUBLIC = {"_exit", "_replace", "_register_atexit"}
USED = re.compile(r"[.\"'](_[a-z]\w+)")
DEFINED = re.compile(r"(?:def |(?:self\.|^\s*)(?=\w+(?:: | = | \+= |, )))(_[a-z]\w+)", re.MULTILINE)


def foreign_names(path: pathlib.Path) -> set[str]:
    """Private attributes, and texts that could be names of such, that no file defines."""
    base = path.with_name("evaluation.py")  # its classes are extended
    texts = [one.read_text(encoding="utf-8") for one in (path, base) if one.exists()]
    return {*USED.findall(texts[0])} - {*DEFINED.findall("".join(texts))} - PUBLIC


def test_private_names_of_keras_are_used_where_the_architecture_says() -> None:
    files = {path.relative_to(TRAINER).as_posix(): path for path in TRAINER.rglob("*.py")}
    found = {file: names for file, path in files.items() if (names := foreign_names(path))}
    assert found.keys() == USERS, f"put such uses into keras_internals.py: {found}"
    told = (TRAINER.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in told for name in USERS)


def test_only_one_module_imports_private_parts_of_tensorflow() -> None:
    texts = {path.name: path.read_text("utf-8") for path in TRAINER.rglob("*.py")}
    using = [name for name, text in texts.items() if "from tensorflow." in text]
    assert using == ["tensorflow_internals.py"]
