#!/usr/bin/env bash
# Builds the wheel and installs it with each extra into an environment of its own: do all packages fit, does dubito
# start? Then a question is asked through uvx and pipx, as people do who install nothing: the message says which weights
# are missing and how to add them, and with them the same command answers.
# Usage: tests/extras.sh [EXTRA ...]     (TORCH=... chooses the release of torch; all extras but vllm, which is for
# machines with a GPU)
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "${TORCH:-torch==2.13.0}" >"$work/torch"
export PIP_CONSTRAINT=$work/torch UV_CONSTRAINT=$work/torch PIPX_HOME=$work/pipx UV_CACHE_DIR=$work/uv
python3 -m pip wheel --quiet --no-deps --wheel-dir "$work" .
wheel=file://$(ls "$work"/dubito-*.whl)

every() { # the extras of pyproject.toml
    python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"])'
}

for extra in ${*:-$(every)}; do
    [ "$extra" != vllm ] || continue
    python3 -m venv --clear "$work/venv"
    "$work/venv/bin/pip" install --quiet --no-compile "dubito[$extra] @ $wheel"
    echo "$extra: $("$work/venv/bin/pip" check)"
    (cd "$work" && venv/bin/dubito --version && venv/bin/dubito doctor --help >/dev/null)
done

asked() { # asked NAME COMMAND...: without the default model's weights, then with them
    local name=$1 said install
    shift
    cd "$work"
    if said=$("$@" ask "Which bridge is longer, the Maddern Bridge or the Maddern Street Bridge?" 2>&1); then
        echo "$name: the weights should have been missing: $said" >&2
        exit 1
    fi
    install=$(sed -n 's/.*not installed: run `\(.*\)`\.$/\1/p' <<<"$said")
    bash -c "$install"
    said=$("$@" ask "Which bridge is longer, the Maddern Bridge or the Maddern Street Bridge?" 2>&1)
    echo "$name: $(tail -n 1 <<<"$said")"
}

asked uvx uvx --from "dubito[local] @ $wheel" dubito
asked pipx pipx run --backend pip --spec "dubito[local] @ $wheel" dubito
