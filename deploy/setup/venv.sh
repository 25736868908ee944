#!/bin/sh
# Makes .venv in the current folder from the first Python 3.11+ found, or does nothing if a sound one is there.
# PYTHON=/path/to/python chooses another.
set -eu

is_sound='import sys, pip; sys.exit(sys.version_info < (3, 11))'
if [ -x .venv/bin/python ] && .venv/bin/python -c "$is_sound" 2>/dev/null; then
    exit 0
fi

if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.13 python3.12 python3.11 python3.14 python
fi
python=
for candidate in "$@"; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    found=$("${PYTHON:-python3}" --version 2>/dev/null || echo "no ${PYTHON:-python3}")
    echo "Tokenbus needs Python 3.11 or newer; found: $found. Install one, or set PYTHON=/path/to/python." >&2
    exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "$("$python" --version) lacks the venv module. On Debian and Ubuntu: apt install python3-venv" >&2
    exit 1
fi

echo "Making .venv with $("$python" --version)"
"$python" -m venv --clear .venv
