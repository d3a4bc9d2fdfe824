#!/bin/sh
# Write requirements.lock: every package that .venv holds, with hashes, for Python 3.11 and newer on
# any Linux; and from it the locks of the container image. Versions already in the lock stay; UPGRADE=1 takes the newest of all.
set -eu

cd "$(dirname "$0")/.."
uv_version=0.13.9
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"${PYTHON:-python3}" -m venv "$scratch/uv"
"$scratch/uv/bin/python" -m pip install --quiet "uv==$uv_version"
# No header, no index: the lock names packages, never where they came from.
"$scratch/uv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-header --extra dev ${UPGRADE:+--upgrade} \
    --output-file requirements.lock pyproject.toml

# The image has what runs, and what builds the wheel, in the very same versions.
echo hatchling >"$scratch/build.in"
for pair in requirements:pyproject.toml "build:$scratch/build.in"; do
    "$scratch/uv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-annotate --constraint requirements.lock \
        --output-file "deploy/container/${pair%%:*}.lock" "${pair#*:}"
done
