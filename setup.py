"""Adds the version and the long description to the metadata of pyproject.toml.

Beam builds this file for `--setup_file ./setup.py` where no dependency is installed. It therefore
imports none of the packages and reads the version from `imageshards/__init__.py` as text.
"""

from __future__ import annotations

import pathlib
import re
import tomllib

import setuptools

ROOT = pathlib.Path(__file__).resolve().parent


def version() -> str:
    """Returns the version, which `imageshards/__init__.py` alone states."""
    source = (ROOT / "imageshards" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if match is None:
        raise SystemExit('imageshards/__init__.py has no line __version__ = "…"; add one.')
    return match.group(1)


def long_description() -> str:
    """Returns the README with absolute links, as a package index shows it without the checkout."""
    readme = ROOT / "README.md"
    if not readme.is_file():
        return ""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = f"{project['urls']['Repository']}/raw/v{version()}/"
    pages = address.replace("/raw/", "/blob/")
    text = readme.read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?=docs/)", rf"\g<1>{address}", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{pages}", text)


setuptools.setup(
    version=version(),
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
