#!/usr/bin/env bash
# The package as it was at a revision, to run beside this one: tests/versions/wheel_of.sh REVISION. One is kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
git archive "$1" | tar -x -C "$source"
rm -f tests/versions/*.whl
.venv/bin/uv build --wheel --no-config --quiet --build-constraints deploy/install/requirements/build.txt \
  -o "$source/dist" "$source"
cp "$source"/dist/*.whl tests/versions/
