#!/bin/sh
# Writes requirements/*.txt from *.in. Arguments go to uv: sh deploy/lock.sh --upgrade, or --upgrade-package django
# The files carry hashes and versions only: no address of a package index, no path, no header.
set -eu
cd "$(dirname "$0")/../requirements"
compile() {
    ../.uv/bin/uv pip compile --quiet --universal --python-version 3.12 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file "$@"
}
compile uv.txt uv.in
compile dev.txt dev.in "$@"
# The smaller sets take the versions that the tests ran with.
compile demo.txt --constraint dev.txt demo.in "$@"
compile base.txt --constraint dev.txt base.in "$@"
