#!/usr/bin/env bash
# For the owner of an AMD GPU: everything this project wants to know from it, into one file to send back.
#   ./amd_check.sh --quick     is everything right?      ./amd_check.sh     timings too      --help: more
# Sets up .venv beside your own environment: a torch that sees the GPU is used as it is and never replaced.
set -euo pipefail
cd "$(dirname "$0")"
. .ci/setup.sh
case " $* " in *" --help "*) ;; *)
    [ "$(machine_gpu)" = amd ] || say "no AMD GPU is visible here (/dev/kfd and /sys/class/kfd): what can be asked without one is"
    ;;
esac
setup_venv "" test demo rocm
exec "$PY" -m benchmarks.rocm_check "$@"
