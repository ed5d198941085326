#!/usr/bin/env bash
# All checks, from nothing: sets up .venv and the compilers, then lint, the built wheel, and the tests.
#   ./test.sh                 everything
#   ./test.sh -m quick        the short run; any arguments go to pytest, and then only pytest runs
# With CI=true a missing compiler is an error; otherwise its tests are skipped and say so.
set -euo pipefail
cd "$(dirname "$0")"
. .ci/setup.sh

# Compilers: g++ for the cpu backend and the header tests, two clangs (oldest and newest supported) for AMD code objects.
missing=()
command -v g++ >/dev/null 2>&1 || missing+=(g++)
for v in 19 22; do
    command -v "clang-$v" >/dev/null 2>&1 || missing+=("clang-$v")
    command -v "ld.lld-$v" >/dev/null 2>&1 || missing+=("lld-$v")
    command -v "llvm-objdump-$v" >/dev/null 2>&1 || missing+=("llvm-$v")
done
if [ ${#missing[@]} -gt 0 ]; then
    say "installing compilers: ${missing[*]}"
    apt_install "${missing[@]}" || say "without ${missing[*]} the tests that need them are skipped"
fi

# hiprtc's implicit header, with which kernels are compiled too. Debian's, where there is no ROCm.
if ! compgen -G '/usr/lib/*/libhiprtc-builtins.so*' >/dev/null && ! compgen -G '/opt/rocm/lib/libhiprtc-builtins.so*' >/dev/null; then
    apt_install libhiprtc-builtins5 || say "without libhiprtc-builtins5 its tests are skipped"
fi

setup_venv constraints-ci.txt dev demo compile rocm
setup_model
# hip-python before release 10 has other signatures: tests run the ROCm route under it too, from a folder of its own.
if [ ! -d "$(dirname "$PY")/../hip-python-6/hip" ]; then
    "$PY" -m pip install -qq --no-deps --only-binary :all: --target "$(dirname "$PY")/../hip-python-6" 'hip-python<7' \
        || say "without hip-python 6 its tests are skipped"
fi
PATH="$(dirname "$PY"):$PATH"
export PATH

if [ "${CI:-}" = true ]; then
    for tool in g++ clang-19 ld.lld-19 llvm-objdump-19 clang-22 ld.lld-22 llvm-objdump-22; do
        command -v "$tool" >/dev/null 2>&1 || die "CI needs $tool"
    done
    "$PY" -c 'from cuda.bindings import nvrtc; print("nvrtc", nvrtc.nvrtcVersion()[1:])' || die "CI needs NVRTC"
fi

if [ $# -eq 0 ]; then
    ./lint.sh
    "$PY" .ci/check_wheel.py
fi

status=0
"$PY" -m pytest -n 2 --dist=worksteal -q "$@" || status=$?
if [ -f benchmarks/stale.py ]; then "$PY" -m benchmarks.stale || true; fi
exit $status
