"""Private names of Keras are used in the few files that ARCHITECTURE.md names."""

from __future__ import annotations

import ast
import pathlib
import re

import trainer

TRAINER = pathlib.Path(trainer.__file__).parent
ARCHITECTURE = TRAINER.parent / "ARCHITECTURE.md"

USERS = {
    "models/keras_internals.py",
    "models/step.py",
    "training/loop.py",
    "training/saved_run.py",
}
# Of the standard library.
PUBLIC = {"_exit", "_replace", "_register_atexit"}


def own_names(text: str) -> set[str]:
    """The names that a file defines."""
    return {
        name
        for node in ast.walk(ast.parse(text))
        if not (isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load))
        for field in ("name", "attr", "id", "arg")
        if isinstance(name := getattr(node, field, None), str)
    }


def foreign_names(text: str, *bases: str) -> set[str]:
    """Private attributes, and texts that could be names of such, that no file defines.

    `bases` are the texts of files whose classes the file may extend.
    """
    nodes = list(ast.walk(ast.parse(text)))
    own = own_names(text).union(*map(own_names, bases))
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    return {name for name in used - own - PUBLIC if re.fullmatch(r"_[a-z]\w+", name)}


def test_a_private_name_of_another_class_is_found() -> None:
    assert foreign_names("model._flatten()") == {"_flatten"}
    assert foreign_names("getattr(model, '_flatten')") == {"_flatten"}
    assert not foreign_names("class A:\n def _own(self): self._x = self._own(); self.__dict__")


def _of_evaluation(path: pathlib.Path) -> str:
    """The base classes of what a kind of target is evaluated by."""
    base = path.parent / "evaluation.py"
    return base.read_text(encoding="utf-8") if base.exists() else ""


def test_private_names_of_keras_are_used_where_the_architecture_says() -> None:
    found = {
        path.relative_to(TRAINER).as_posix(): names
        for path in TRAINER.rglob("*.py")
        if (names := foreign_names(path.read_text(encoding="utf-8"), _of_evaluation(path)))
    }
    assert found.keys() == USERS, f"put such uses into keras_internals.py: {found}"
    told = ARCHITECTURE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in told for name in USERS)
