#!/usr/bin/env bash
# Resolves pyproject.toml into the pinned, hashed files beside this script. uv.lock holds index addresses and is not kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
export UV_PYTHON_DOWNLOADS=never
# uv reads no index from pip's variable; deploy/install/bootstrap.py does the same.
if [[ -n "${PIP_INDEX_URL:-}" && -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]]; then
  export UV_DEFAULT_INDEX="$PIP_INDEX_URL"
fi
uv=.venv/bin/uv
folder=deploy/install/requirements
"$uv" lock "$@"
.venv/bin/python -m deploy.install.kafka_jars --lock >/dev/null
export_to() {
  "$uv" export --quiet --no-header --no-emit-index-url --no-emit-project "${@:2}" -o "$folder/$1.txt" >/dev/null
}
local_stack=(--no-dev --extra embedded --extra demo --extra postgres)
export_to server --no-dev --extra postgres # a gateway, admission, post-safety, settlement, or billing beside a ClickHouse server
# The same with what exports spans; apart, because redis-py loads OpenTelemetry wherever it finds it.
export_to tracing --no-dev --extra postgres --extra tracing
export_to light "${local_stack[@]}"
export_to cpu "${local_stack[@]}" --extra tracing --extra cpu
export_to gpu "${local_stack[@]}" --extra tracing --extra gpu
export_to dev --only-dev
echo uv | "$uv" pip compile --no-config --quiet --no-header --no-annotate --no-emit-index-url --generate-hashes - -o "$folder/uv.txt" >/dev/null
# What draws the plots of benchmarks, in an environment of its own: its numpy is not the one that vLLM needs.
echo "matplotlib>=3.10,<4" | "$uv" pip compile --no-config --quiet --no-header --no-annotate --no-emit-index-url --generate-hashes - -o "$folder/plots.txt" >/dev/null
# What looks up known vulnerabilities, and holds bills of materials against their schema: apart, because nothing needs it.
printf '%s\n' 'pip-audit>=2.10,<3' 'cyclonedx-python-lib[json-validation]' |
  "$uv" pip compile --no-config --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url --generate-hashes - -o "$folder/audit.txt" >/dev/null
# What builds the project, and packages that have no wheel for a machine.
printf '%s\n' hatchling==1.27.0 editables==0.5 setuptools wheel cython setuptools-scm |
  "$uv" pip compile --no-config --quiet --no-header --no-annotate --no-emit-index-url --generate-hashes - -o "$folder/build.txt" >/dev/null
# Packages of others that are run against Sluice, apart from ours: they want versions that ours do not.
conformance=tests/conformance/requirements
resolve() {
  "$uv" pip compile --no-config --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url --generate-hashes "${@:2}" -o "$1.txt" >/dev/null
}
for environment in newest openai-2 schemathesis; do
  resolve "$conformance/$environment" "$conformance/$environment.in"
done
resolve "$conformance/guidellm" --override "$conformance/guidellm.overrides" "$conformance/guidellm.in"
# LiteLLM's proxy: before Sluice in those tests, beside it in benchmarks.
echo "litellm[proxy]>=1.106" | resolve "$folder/litellm-proxy" -
