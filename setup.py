"""Adds the version, the dependencies and the long description to the metadata of pyproject.toml.

Beam builds this file for `--setup_file ./setup.py` where no dependency is installed. It therefore
imports none of the packages and reads the version from `imageshards/__init__.py` as text.
"""

from __future__ import annotations

import pathlib
import re
import tomllib

import setuptools

ROOT = pathlib.Path(__file__).resolve().parent

# Dependencies of every command that reads a finished dataset. Beam's `--setup_file` installs this
# list on a worker that has Beam already, so the list names everything else that a worker imports.
# Beam sets the upper bounds of Pillow and PyArrow.
LEAF = [
    "google-crc32c>=1.5,<2",
    "jinja2>=3.1,<4",
    "msgspec>=0.20,<1",
    "numpy>=1.26,<3",
    "pillow>=12,<13",
    "protobuf>=6.31,<7",
    "pyarrow>=14.0.1",
    "tqdm>=4.66,<5",
    "urllib3>=2.2,<3",
]

# Each extra adds to the list above. Only `columns` installs both Beam and TensorFlow.
PIPELINE = ["apache-beam>=2.77,<3"]

COLUMNS = [*PIPELINE, "tensorflow-transform>=1.21,<1.22"]

# Google's clients, which submit a job to Dataflow.
DATAFLOW = ["apache-beam[gcp]>=2.77,<3"]

TRAINER = ["keras>=3.15,<3.16", "tensorflow>=2.21,<2.22"]

# gs:// paths.
GCP = ["google-cloud-storage>=2.18"]

# s3:// paths. The bound has conditional writes (`IfNoneMatch`, `IfMatch`), which locks need.
AWS = ["boto3>=1.36,<2"]

# Decodes HEIC, the format of many phones. Pillow itself decodes AVIF.
HEIF = ["pillow-heif>=1,<2"]

# Builds the documentation. Zensical, the successor of Material, reads the same mkdocs.yml.
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.7,<10", "mkdocstrings-python>=2"]

DEV = [
    *AWS,
    *COLUMNS,
    *DATAFLOW,
    *DOCS,
    *GCP,
    *HEIF,
    *TRAINER,
    "build>=1.2",
    # Tests and benchmarks talk to these store emulators. The `server` extra of moto would add
    # thirty packages for services that the tests do not use.
    "flask>=3",
    "flask-cors>=5",
    "gcp-storage-emulator>=2026.7",
    # A test reads `data.source` with grain.
    "grain>=0.2.15",
    "hypothesis>=6.100",
    "import-linter>=2.3",
    # A test reads the croissant.json of a dataset with mlcroissant.
    "mlcroissant>=1.1",
    # tensorflow-datasets 4.9.10 imports this package without requiring it.
    "importlib-resources>=6",
    # Convert the tutorial to a notebook and execute it.
    "ipykernel>=6",
    "jupytext>=1.16",
    "moto[s3]>=5.1",
    "mypy>=1.15",
    "nbclient>=0.10",
    "packaging>=22",
    "psutil>=6",
    "pytest>=8.3",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "pyyaml>=6",
    "ruff>=0.9",
    "setuptools>=77",
    # The benchmarks of the reader take its decoding speed as their limit.
    "simplejpeg>=1.8,<2",
    # A test runs Keras's TensorBoard callback.
    "tensorboard>=2.20",
    # Runs the code blocks of the documentation.
    "sybil>=9",
    "tensorflow-datasets>=4.9.7,<5",
    "types-tqdm",
    "wheel>=0.43",
]


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
    packages=setuptools.find_packages(
        include=[
            "imageshards",
            "imageshards.*",
            "beam_pipeline",
            "beam_pipeline.*",
            "trainer",
            "trainer.*",
        ]
    ),
    # The templates and style sheet of the pages, and the traced graphs; `py.typed` marks the types.
    package_data={
        "": ["*.css", "*.html", "*.jinja", "py.typed"],
        "beam_pipeline.columns": ["label_graph/**/*", "labels_graph/**/*"],
    },
    install_requires=LEAF,
    extras_require={
        "pipeline": PIPELINE,
        "columns": COLUMNS,
        "dataflow": DATAFLOW,
        "trainer": TRAINER,
        "gcp": GCP,
        "aws": AWS,
        "heif": HEIF,
        "docs": DOCS,
        "dev": DEV,
    },
)
