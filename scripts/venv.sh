#!/bin/sh
# Creates or repairs a virtual environment and installs the locked packages and this checkout.
#
#     scripts/venv.sh FOLDER [PYTHON]
#
# The script keeps FOLDER if its interpreter works and has the version of PYTHON. Without PYTHON
# the script uses the first supported interpreter on the PATH.
set -eu

folder=$1
wanted=${2:-}

fail() {
    echo "error: $1" >&2
    exit 1
}

# Prints the version, such as "3.12", if the interpreter $1 runs and is supported.
supported() {
    "$1" -c 'import sys
v = sys.version_info[:2]
if not (3, 11) <= v <= (3, 13): sys.exit(1)
print("%d.%d" % v)' 2>/dev/null
}

found() {
    if command -v "$1" >/dev/null; then "$1" --version 2>&1 | head -n 1; else echo "$1 not found"; fi
}

if [ -n "$wanted" ]; then
    version=$(supported "$wanted") ||
        fail "PYTHON=$wanted is not Python 3.11 to 3.13 ($(found "$wanted")); name another interpreter."
else
    version=
    for candidate in python3 python3.12 python3.13 python3.11; do
        if version=$(supported "$candidate"); then
            wanted=$candidate
            break
        fi
    done
    [ -n "$version" ] ||
        fail "no Python 3.11 to 3.13 on the PATH ($(found python3)); install one or give make PYTHON=/path/to/python3."
fi

# Without PYTHON any supported version in an existing FOLDER is good enough.
have=$(supported "$folder/bin/python") || have=
if [ -z "$have" ] || { [ -n "${2:-}" ] && [ "$have" != "$version" ]; } ||
    ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    "$wanted" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$wanted has no venv module; install it (Debian and Ubuntu: apt install python$version-venv)."
    echo "Creating $folder with Python $version …"
    "$wanted" -m venv --clear "$folder" || fail "$wanted could not create $folder; see the messages above."
fi

echo "Installing the locked packages into $folder (some minutes the first time) …"
pip() {
    "$folder/bin/python" -m pip --disable-pip-version-check "$@" ||
        fail "pip could not install the packages; fix the error above and run the same command again (pip keeps its downloads)."
}
# pip builds this package and the few packages without a wheel with the locked setuptools.
pip install --quiet --no-deps -c constraints.txt setuptools wheel
pip install --quiet --no-deps --no-build-isolation -r constraints.txt
pip install --quiet --no-deps --no-build-isolation -e .
