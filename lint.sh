#!/usr/bin/env bash
# Everything CI lints, with the tools of the `dev` extra. --fix first applies what can be applied.
set -uo pipefail
cd "$(dirname "$0")"
if [ -x .venv/bin/ruff ]; then PATH="$PWD/.venv/bin:$PATH"; fi
command -v ruff >/dev/null || { echo "lint.sh: tools missing; pip install -e '.[dev]' (./test.sh does it)" >&2; exit 2; }
device_code() { git ls-files '*.hpp' '*.cpp' '*.cu' '*.hip'; }

failed=()
check() {   # check NAME COMMAND...
    local name="$1"
    shift
    printf '%-14s ' "$name"
    local output
    if output=$("$@" 2>&1); then echo ok; else echo FAILED; printf '%s\n' "$output"; failed+=("$name"); fi
}

if [ "${1:-}" = --fix ]; then
    ruff check -q --fix . || true
    ruff format -q .
    device_code | xargs -r clang-format -i
fi
check "ruff check" ruff check .
check "ruff format" ruff format --check .
check mypy mypy
check clang-format bash -c "$(declare -f device_code); device_code | xargs -r clang-format --dry-run -Werror"
check import-linter lint-imports
check codespell bash -c "git ls-files | grep -v LICENSE | xargs codespell"
check yaml,toml,json python .ci/check_data.py
check shell bash -c 'for f in $(git ls-files "*.sh" .ci/run); do bash -n "$f" || exit 1; done'
if [ ${#failed[@]} -gt 0 ]; then echo "lint failed: ${failed[*]}"; exit 1; fi
