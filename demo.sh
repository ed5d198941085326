#!/usr/bin/env bash
# The main job on this machine, from nothing: sets up .venv (torch for the GPU there is, or for the CPU), gets the
# model's weights, and runs `portagemm demo`. Arguments go to it (./demo.sh --help).
set -euo pipefail
cd "$(dirname "$0")"
. .ci/setup.sh
setup_venv "" demo
setup_model
exec "$PY" -m portagemm.cli demo "$@"
