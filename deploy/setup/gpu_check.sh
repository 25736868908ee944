#!/bin/sh
# Checks and times everything on a machine with a GPU (bench/gpu_check, docs/gpu.md). Makes no environment: takes .venv if
# torch is in it, else python3 (PYTHON=/path/to/python: another one) with the wheels of .gpu-wheels beside its packages.
set -eu
cd "$(dirname "$0")/../.."

wheels=.gpu-wheels
site=.gpu-site
has_torch='import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'

if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ] && .venv/bin/python -c "$has_torch"; then
    python=.venv/bin/python
else
    python=${PYTHON:-python3}
    if ! "$python" -c "$has_torch"; then
        echo "No torch for $python. Install torch, or name the Python that has it: PYTHON=/path/to/python" >&2
        exit 2
    fi
    if ls "$wheels"/*.whl >/dev/null 2>&1 && [ "$(ls "$wheels")" != "$(cat "$site/.wheels" 2>/dev/null)" ]; then
        echo "Installing what $wheels holds into $site"
        rm -rf "$site"
        "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile \
            --target "$site" "$wheels"/*.whl
        ls "$wheels" >"$site/.wheels"
    fi
    if [ -d "$site" ]; then
        export PYTHONPATH="$PWD/$site${PYTHONPATH:+:$PYTHONPATH}"
        export PATH="$PWD/$site/bin:$PATH"
    fi
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

exec "$python" -m bench.gpu_check "$@"
