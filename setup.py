"""The distribution `imageshards`: `beam_pipeline` for workers, `trainer` beside the GPUs.

Beam builds this file on its own for `--setup_file ./setup.py`, so it imports nothing of
the packages it describes: the version is read from `imageshards/__init__.py` as text.
"""

from __future__ import annotations

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).resolve().parent

# What a finished dataset needs: every command but `build` and those for models. It is also what
# Beam's `--setup_file` installs on a worker, which has Beam already, so it names all else that a
# worker imports. Pillow's and PyArrow's upper bounds are Beam's own.
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

# An extra adds to the list above. Only `columns` brings both Beam and TensorFlow.
PIPELINE = ["apache-beam>=2.77,<3"]

COLUMNS = [*PIPELINE, "tensorflow-transform>=1.21,<1.22"]

# Google's clients, with which a job is submitted to Dataflow.
DATAFLOW = ["apache-beam[gcp]>=2.77,<3"]

TRAINER = ["keras>=3.15,<3.16", "tensorflow>=2.21,<2.22"]

# gs:// paths.
GCP = ["google-cloud-storage>=2.18"]

# s3:// paths. The bound has conditional writes (`IfNoneMatch`, `IfMatch`), which locks need.
AWS = ["boto3>=1.36,<2"]

# Pictures of phones that write HEIC; Pillow reads AVIF by itself.
HEIF = ["pillow-heif>=1,<2"]

# The documentation's site; mkdocs.yml is what Zensical, Material's successor, reads as well.
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
    # Stand-ins for the stores that tests and benchmarks talk to. moto's own extra for its
    # server brings thirty packages for services that are none of ours.
    "flask>=3",
    "flask-cors>=5",
    "gcp-storage-emulator>=2026.7",
    # A loader of others that reads `data.source`, in a test.
    "grain>=0.2.15",
    "hypothesis>=6.100",
    "import-linter>=2.3",
    # Reads the croissant.json of a dataset in a test.
    "mlcroissant>=1.1",
    # tensorflow-datasets 4.9.10 imports it without asking for it.
    "importlib-resources>=6",
    # The tutorial as a notebook, and what executes it.
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
    # What decoding in memory can reach at most, in benchmarks of the reader.
    "simplejpeg>=1.8,<2",
    # Keras's callback of that name writes with it, in a test.
    "tensorboard>=2.20",
    # Runs the code blocks of the documentation.
    "sybil>=9",
    "tensorflow-datasets>=4.9.7,<5",
    "types-tqdm",
    "wheel>=0.43",
]


def version() -> str:
    """The version, from the one place that states it."""
    source = (ROOT / "imageshards" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if match is None:
        raise SystemExit('imageshards/__init__.py has no line __version__ = "…"; add one.')
    return match.group(1)


def long_description() -> str:
    """The README, where there is one."""
    readme = ROOT / "README.md"
    return readme.read_text(encoding="utf-8") if readme.is_file() else ""


setuptools.setup(
    name="imageshards",
    version=version(),
    description="Raw JPEGs to balanced, reproducible TFRecord shards, and a model trained on them.",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
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
    # The pages' templates and style sheet, a traced graph; `py.typed` says that there are types.
    package_data={
        "": ["*.css", "*.html", "*.jinja", "py.typed"],
        "beam_pipeline.columns": ["label_graph/**/*", "labels_graph/**/*"],
    },
    python_requires=">=3.11,<3.14",
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
    entry_points={"console_scripts": ["imageshards = imageshards.__main__:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Processing",
    ],
)
