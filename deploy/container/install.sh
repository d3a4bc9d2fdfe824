#!/bin/sh
# Install the watchdog into a virtual environment of its own: install.sh DIRECTORY
# Everything is pinned by hash; nothing of the Python that runs this is changed. The tree around this
# script is what is installed.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
target=$1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

into() { # into ENVIRONMENT ARGUMENTS: pip is that of the Python around, and stays out of ENVIRONMENT
    environment=$1
    shift
    python3 -m pip --python "$environment/bin/python" install --quiet --no-compile "$@"
}

python3 -m venv --without-pip "$target"
into "$target" --only-binary :all: --require-hashes --requirement "$here/requirements.lock"

python3 -m venv --without-pip "$scratch/build"
into "$scratch/build" --only-binary :all: --require-hashes --requirement "$here/build.lock"
(cd "$here/../.." && "$scratch/build/bin/python" -m hatchling build --target wheel \
    --directory "$scratch/wheel" >"$scratch/log" 2>&1) || { cat "$scratch/log" >&2; exit 1; }
into "$target" --no-index --no-deps "$scratch"/wheel/*.whl

# The wheel of cel-expr-python brings 44 MB that nobody imports: its own build tree, and extensions
# of CEL that our rules do not have.
packages=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
rm -rf "$packages/bazel-project" "$packages/example.py" "$packages/cel_expr_python/ext"

# Who runs it may not write here; without this every start would compile a thousand modules.
"$target/bin/python" -m compileall -q "$target/lib"
