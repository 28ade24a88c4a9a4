#!/bin/sh
# Makes .venv from the hash-locked requirements: sh deploy/bootstrap.sh base|demo|dev
#
# Needs any python3 with venv; that one installs the pinned uv into .uv/. The environment itself wants Python 3.12 or
# newer: each candidate is run, since a shim on PATH proves nothing; if none will do, uv is asked to bring one.
# A set that is already there, or a larger one, is left alone, so that calling this before every command costs little.
# FENCEWATCH_PYTHON names one interpreter to use instead of the candidates.
set -eu
cd "$(dirname "$0")/.."
umask 022

wanted=${1:-dev}
case $wanted in
    base | demo | dev) ;;
    *) echo "deploy/bootstrap.sh: '$wanted' is not one of base, demo, dev." >&2; exit 2 ;;
esac
stamp=.venv/.fencewatch

say() { printf '%s\n' "$*" >&2; }
fail() { say "Fencewatch cannot set up: $*"; exit 1; }

rank() { case $1 in dev) echo 3 ;; demo) echo 2 ;; base) echo 1 ;; *) echo 0 ;; esac; }

# A virtual environment holds absolute paths, so the folder belongs to what is compared.
checksum() { { pwd; cat "requirements/$1.txt" requirements/uv.txt .python-version deploy/bootstrap.sh; } | cksum; }

if [ -r "$stamp" ] && .venv/bin/python -c '' 2>/dev/null; then
    read -r have < "$stamp"
    [ "$(rank "$have")" -gt "$(rank "$wanted")" ] && wanted=$have
    [ "$(sed 1d "$stamp")" = "$(checksum "$wanted")" ] && [ "$have" = "$wanted" ] && exit 0
fi

candidates() {
    if [ -n "${FENCEWATCH_PYTHON:-}" ]; then
        echo "$FENCEWATCH_PYTHON"
        return
    fi
    for version in 3.13 3.14 3.12; do
        command -v "python$version" || true
        for folder in "${PYENV_ROOT:-$HOME/.pyenv}/versions" "${UV_PYTHON_INSTALL_DIR:-$HOME/.local/share/uv/python}" .uv/python; do
            for found in "$folder"/$version*/bin/"python$version" "$folder"/cpython-$version*/bin/"python$version"; do
                [ -x "$found" ] && echo "$found"
            done
        done
        for found in "/usr/bin/python$version" "/usr/local/bin/python$version"; do
            [ -x "$found" ] && echo "$found"
        done
    done
    command -v python3 || true
    [ -x /usr/bin/python3 ] && echo /usr/bin/python3
    for found in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
        [ -x "$found" ] && echo "$found"
    done
    return 0
}

python=    # runs the product: 3.12 or newer
seed=      # installs uv: any Python 3 that can make a virtual environment
seen=      # the newest too old one, for the message
list=$(candidates)
IFS='
'
for candidate in $list; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) || continue
    case $version in 3.*) minor=${version#3.} ;; *) continue ;; esac
    if [ "$minor" -ge 12 ]; then
        [ -n "$python" ] || python=$candidate
    elif [ -z "$seen" ]; then
        seen="$candidate is Python $version"
    fi
    if [ -z "$seed" ] && [ "$minor" -ge 8 ] && "$candidate" -c 'import ensurepip, venv' 2>/dev/null </dev/null; then
        seed=$candidate
    fi
    [ -n "$python" ] && [ -n "$seed" ] && break
done
unset IFS

if [ -z "$seed" ] && [ -z "$python$seen" ]; then
    fail "no python3 runs here; install the Debian packages python3 and python3-venv."
fi
[ -n "$seed" ] || fail "${python:-$seen}, but it cannot make a virtual environment; install the Debian package python3-venv."

if ! .uv/bin/uv --version 2>/dev/null | grep -qF "uv $(sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements/uv.txt)"; then
    say "Installing the pinned uv into .uv/ ..."
    rm -rf .uv
    "$seed" -m venv .uv || fail "$seed cannot make a virtual environment; install the Debian package python3-venv."
    .uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
        --requirement requirements/uv.txt || fail "uv could not be installed; is a Python package index reachable?"
fi
# Where the files are on another file system than uv's cache, hard links fail with a warning that helps nobody.
UV_LINK_MODE=${UV_LINK_MODE:-copy}
export UV_LINK_MODE
# pip trusts what this machine trusts; so does uv, where there is such a list.
if [ -r /etc/ssl/certs/ca-certificates.crt ]; then
    UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}
    export UV_SYSTEM_CERTS
fi

if [ -z "$python" ]; then
    say "No Python 3.12 or newer here ($seen); asking uv to bring one ..."
    UV_PYTHON_INSTALL_DIR="$(pwd)/.uv/python" .uv/bin/uv python install --quiet --no-bin "$(cat .python-version)" ||
        fail "$seen, 3.12 or newer is needed, and none could be fetched; install the Debian packages python3.13 and python3.13-venv, or name one in FENCEWATCH_PYTHON."
    for found in .uv/python/cpython-*/bin/python3; do python=$(pwd)/$found; done
fi

say "Installing requirements/$wanted.txt into .venv with $("$python" --version) ..."
rm -f "$stamp"
# An environment is made anew only when its interpreter is gone or too old, so that running programs keep theirs.
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
    rm -rf .venv
    .uv/bin/uv venv --quiet --no-project --python "$python" .venv || fail "$python cannot be used for .venv."
fi
.uv/bin/uv pip sync --quiet --no-progress --python .venv/bin/python --require-hashes --only-binary :all: "requirements/$wanted.txt" ||
    fail "the packages of requirements/$wanted.txt could not be installed; the lines above say why."
{ echo "$wanted"; checksum "$wanted"; } > "$stamp"
