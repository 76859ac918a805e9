"""A Flink distribution: the user's own, or one made from the wheels on PyPI.

PyFlink's two wheels hold a whole Flink: the libraries in one, the scripts and the configuration
in the other. Neither is installed: PyFlink pins an old Beam.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from imageshards.errors import UserError
from scripts.background import cache_folder

# The newest Flink for which Beam publishes a job server, and of which PyPI has wheels.
VERSION = "2.2.1"

_LIBRARIES = "apache-flink-libraries"
_SCRIPTS = "apache-flink"
# What a cluster needs of the wheels; `opt` and `examples` are not among it.
_PARTS = {_LIBRARIES: ("lib", "plugins", "bin"), _SCRIPTS: ("bin", "conf")}
_DOWNLOAD_TIMEOUT_SEC = 1800


def flink_home(given: str | None, version: str = VERSION) -> pathlib.Path:
    """The folder of a Flink distribution; made on the first call if none is given.

    Raises:
        UserError: What was given is no Flink, or the wheels cannot be had.
    """
    if given:
        home = pathlib.Path(given).expanduser().absolute()
        if not (home / "bin" / "jobmanager.sh").is_file():
            raise UserError(
                f"FLINK_HOME received {given!r}, which has no bin/jobmanager.sh; expected an "
                "unpacked Flink distribution, or nothing to have one made from PyPI's wheels."
            )
        return home
    home = cache_folder() / f"flink-{version}"
    if not (home / "bin" / "jobmanager.sh").is_file():
        _make(home, version)
    return home


def _make(home: pathlib.Path, version: str) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as folder:
        wheels = _download(pathlib.Path(folder), version)
        made = pathlib.Path(folder) / "flink"
        for package, parts in _PARTS.items():
            for part in parts:
                _unpack(wheels[package], f"pyflink/{part}/", made)
        for script in (made / "bin").iterdir():
            script.chmod(0o755)  # a wheel keeps no rights
        (made / "log").mkdir()
        shutil.rmtree(home, ignore_errors=True)
        made.rename(home)


def _download(folder: pathlib.Path, version: str) -> dict[str, pathlib.Path]:
    print(f"downloading Flink {version} from PyPI (about 320 MB), once", file=sys.stderr)
    wanted = [f"{package}=={version}" for package in _PARTS]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--only-binary", ":all:", "--dest", str(folder), *wanted,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_SEC
        )
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except subprocess.TimeoutExpired:
        done, reason = None, f"not done within {_DOWNLOAD_TIMEOUT_SEC} s"
    found = {
        package: wheel
        for package in _PARTS
        for wheel in folder.glob(f"{package.replace('-', '_')}-{version}-*.whl")
    }
    if done is None or done.returncode or len(found) != len(_PARTS):
        raise UserError(
            f"the wheels {' and '.join(wanted)} could not be downloaded ({reason}); download "
            "Flink from its own site and name its folder by FLINK_HOME."
        )
    return found


def _unpack(wheel: pathlib.Path, prefix: str, folder: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.startswith(prefix) and not member.is_dir():
                target = folder / member.filename.removeprefix("pyflink/")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
