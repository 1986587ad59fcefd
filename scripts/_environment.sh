# Sourced by the other scripts: makes .venv beside pyproject.toml on first use and says what it does.
# Later runs reuse it and start at once. FL_SHUFFLE_PYTHON names another Python (3.11 or newer).

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
venv="$root/.venv"
stamp="$venv/.fl-shuffle-installed"

prepare() {
    wanted=$(cat "$root/pyproject.toml" "$root/constraints.txt" | cksum)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        return
    fi
    python=${FL_SHUFFLE_PYTHON:-}
    if [ -z "$python" ]; then
        for candidate in python3 python3.13 python3.12 python3.11; do
            if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
                python=$candidate
                break
            fi
        done
    fi
    if [ -z "$python" ]; then
        echo "fl-shuffle needs Python 3.11 or newer on the PATH (or named by FL_SHUFFLE_PYTHON)" >&2
        exit 1
    fi
    echo "First use: making $venv and installing (a few minutes, once) ..." >&2
    "$python" -m venv "$venv" || exit 1
    # torch first and pinned, so that nothing else pulls in another build of it.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -c "$root/constraints.txt" torch >&2 || exit 1
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -c "$root/constraints.txt" -e "$root[dev,all,docs]" >&2 || exit 1
    echo "$wanted" > "$stamp"
}

# Run one of this repository's own modules, wherever the caller stands.
run_module() {
    PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$venv/bin/python" -m "$@"
}

prepare
