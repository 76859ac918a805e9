#!/bin/sh
# Builds the fake GPU for the TensorFlow of a Python, unless it is built: build.sh PYTHON
#
# The library uses TensorFlow's C++ interfaces, so each version of TensorFlow needs its own build.
set -eu

here=$(dirname "$0")
folder="$here/build/site-packages/tensorflow-plugins"
library="$folder/libfake_gpu.so"
version=$("$1" -c 'from importlib.metadata import version; print(version("tensorflow"))')
if [ "$library" -nt "$here/fake_gpu.cc" ] && [ "$(cat "$here/build/version" 2>/dev/null)" = "$version" ]; then
    exit 0
fi
if ! command -v g++ >/dev/null; then
    echo "no fake GPU: g++ is not installed, so the tests of GPUs will be skipped" >&2
    exit 1
fi
echo "building a fake GPU for TensorFlow $version with g++ (half a minute, once) ..." >&2
mkdir -p "$folder"
flags=$(TF_CPP_MIN_LOG_LEVEL=3 "$1" 2>/dev/null -c "
import tensorflow as tf
flags = tf.sysconfig.get_compile_flags() + tf.sysconfig.get_link_flags()
print(*flags, '-Wl,-rpath,' + tf.sysconfig.get_lib())")
# The headers give hundreds of warnings about TensorFlow's own code.
# shellcheck disable=SC2086
g++ -O1 -w -shared -fPIC -pthread "$here/fake_gpu.cc" $flags -o "$library.new"
mv "$library.new" "$library"
echo "$version" >"$here/build/version"
