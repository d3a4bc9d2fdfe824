#!/bin/sh
# Make .venv agree with requirements.lock and pyproject.toml: from `make`, as tools/venv.sh STAMP.
# The stamp holds the checksum of the lock that was installed and is written last, so a half-built
# environment is built again, and one whose lock did not change only gets the project re-installed.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
stamp=$1
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

python_is_new_enough() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'
}

# One builder at a time: two `make` in one clone would otherwise install over each other.
exec 9>.venv.lock
flock 9

lock=$(sha256sum <requirements.lock)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$lock" ]; then
    if ! python_is_new_enough; then
        echo "cannot build .venv: $python is not Python 3.11 or newer (choose one with PYTHON=...)" >&2
        exit 1
    fi
    # Debian splits ensurepip, which venv needs, off into a package.
    "$python" -c 'import ensurepip' 2>/dev/null || tools/debian_packages.sh python3-venv
    "$python" -m venv --clear .venv
    .venv/bin/python -m pip install --quiet --require-hashes --requirement requirements.lock
fi
rm -f "$stamp"
.venv/bin/python -m pip install --quiet --no-build-isolation --no-deps --editable .
echo "$lock" >"$stamp"
