"""Known messages of the system, caches, compilers and clusters. Form and matching: known.py, match.py."""

from __future__ import annotations

from portagemm.doctor.check import Remedy
from portagemm.doctor.known import KnownMessage as Known
from portagemm.doctor.known import do, reboot, root

_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_TRITON = "https://github.com/triton-lang/triton"

SYSTEM: tuple[Known, ...] = (
    Known(
        id="shm-full",
        vendor="any",
        means="/dev/shm is full: Docker gives a container 64 MB, and NCCL, RCCL and data loaders exchange data there.",
        remedies=(
            Remedy(
                "start the container with more", "docker run --shm-size=1g ...   (or --ipc=host)", host=True
            ),
            Remedy("Kubernetes: mount an emptyDir with medium Memory at /dev/shm", host=True),
        ),
        phrases=(
            (
                "DataLoader worker is killed by signal: Bus error. It is possible that dataloader's workers are out of"
                " shared memory"
            ),
            (
                "It is possible that dataloader's workers are out of shared memory. Please try to raise your shared"
                " memory limit"
            ),
        ),
        patterns=(
            r"posix_fallocate failed",
            r"/dev/shm/(?:nccl|rccl|torch|psm|sem)[\w.-]*.{0,60}(?:size \d+|error|no space|\(28\)|failed)",
            r"(?:error while |failed |unable )(?:to )?(?:creating|create|extend|attach\w*|open\w*) (?:to )?shared memory segment",
            r"(?:no space left|ENOSPC|errno 28).{0,60}/dev/shm",
            r"/dev/shm.{0,40}(?:no space left|ENOSPC|kein speicherplatz|aucun espace|no queda espacio|too small)",
            r"(?:signal: |core dumped.{0,30})bus error",
            r"bus error.{0,40}(?:core dumped|shared memory|shm)",
            r"nccl.{0,200}bus error",
        ),
        checks=("limits.shm",),
        sources=(_NCCL, "NVIDIA/nccl#290", "vllm-project/vllm#1710"),
    ),
    Known(
        id="glibcxx-not-found",
        vendor="any",
        means="an older libstdc++ (often Conda's) is found before the one a library was built with.",
        remedies=(
            do("Conda: install a newer one", "conda install -c conda-forge 'libstdcxx-ng>=12'"),
            do("or take the older one's folder out of LD_LIBRARY_PATH"),
        ),
        patterns=(
            r"(?:GLIBCXX|CXXABI)_\d+(?:\.\d+)+.{0,4} ?(?:not found|not defined|nicht gefunden|introuvable|no encontrad|non trovat|未找到|не найден)",
            r"(?:version|Version).{0,4}(?:GLIBCXX|CXXABI)_\d+(?:\.\d+)+",
            r"libstdc\+\+\.so\.6.{0,30}(?:GLIBCXX|CXXABI)_",
        ),
        checks=("libs.glibcxx",),
        sources=("k2-fsa/k2#1045", "ROCm/AMDMIGraphX#3405"),
    ),
    Known(
        id="stale-file-handle",
        vendor="any",
        means="the compile cache lies on a network file system, where one node's rename or removal invalidates"
        " another's open file.",
        remedies=(
            do(
                "put the cache on a local disk of each node",
                "export PORTAGEMM_CACHE_DIR=/tmp/$USER/portagemm",
            ),
            do("Triton: the same", "export TRITON_CACHE_DIR=/tmp/$USER/triton"),
        ),
        phrases=("OSError: [Errno 116] Stale file handle",),
        patterns=(
            r"\[?Errno 116\]?",
            r"ESTALE(?![a-z])",
            r"stale (?:NFS )?file handle",
        ),
        checks=("cache.fs",),
        sources=("triton-lang/triton#2688", "pytorch/pytorch#173679"),
    ),
    Known(
        id="cache-not-writable",
        vendor="any",
        means="the compile cache cannot be written: HOME is unset, `/` or read-only, as for a random user id in a"
        " container.",
        remedies=(
            do("name a writable folder", "export PORTAGEMM_CACHE_DIR=/tmp/portagemm-$(id -u)"),
            do("and for the others", "export HOME=/tmp/home TRITON_CACHE_DIR=/tmp/triton-$(id -u)"),
        ),
        patterns=(
            r"(?:permission\w*|errno 13|errno 30|read-only file system|EROFS|EACCES|keine berechtigung|permission non accord|nur lese|lecture seulement).{0,80}[\"']?/(?:[\w/.-]*/)?(?:\.(?:triton|cache|nv|config|local)|triton|portagemm|torch_?inductor\w*)(?:[/\"' ]|$)",
            r"(?:mkdir|makedirs|creat\w+ (?:directory|folder|cache)).{0,80}/(?:[\w/.-]*/)?\.(?:triton|cache|nv|config).{0,60}(?:denied|read-only|permission|refus|verweigert)",
            r"(?:triton|inductor|kernel)_?cache.{0,60}(?:not writable|read-only|permission denied)",
        ),
        unless=(r"/dev/(?:kfd|dri)",),
        checks=("cache.writable",),
        sources=(_TRITON, "foundation-model-stack/fms-hf-tuning#367", "nf-core/proteinfold#463"),
    ),
    Known(
        id="cache-noexec",
        vendor="any",
        means="a compiled library lies on a file system mounted noexec, from which nothing can be loaded.",
        remedies=(
            do(
                "name a folder on another file system",
                "export TMPDIR=$HOME/tmp PORTAGEMM_CACHE_DIR=$HOME/.cache/pg",
            ),
            root("or mount it with exec", "sudo mount -o remount,exec /tmp"),
        ),
        phrases=("failed to map segment from shared object",),
        patterns=(
            r"failed to map segment",
            r"\.so[\w.]{0,40}:.{0,20}(?:abbilden|mapper|mappe|asignar|отображ).{0,30}(?:segment|shared|objet|objeto)",
            r"\.so[\w.]{0,40}: .{0,60}segment.{0,60}(?:operation not permitted|EPERM|vorgang nicht|opération non)",
        ),
        checks=("cache.noexec",),
        sources=("pytorch/pytorch#91005", "pytorch/pytorch#123054"),
    ),
    Known(
        id="cache-other-owner",
        vendor="any",
        means="the cache folder in a shared temporary directory belongs to another user. Code from such a folder must"
        " not be run either.",
        remedies=(
            do("use a folder of your own, mode 0700", "export TRITON_CACHE_DIR=/tmp/$USER/triton"),
            do("the same for this library", "export PORTAGEMM_CACHE_DIR=/tmp/$USER/portagemm"),
        ),
        patterns=(
            r"(?:permission\w*|errno 13|errno 1(?!\d)|EACCES|EPERM|keine berechtigung|permission non accord|operation not permitted).{0,80}[\"']?/(?:var/)?tmp/(?:[\w.-]+/)*(?:triton|torchinductor|portagemm|torch_extensions|pg)[\w./-]*",
            r"/(?:var/)?tmp/(?:triton|torchinductor\w*|portagemm\w*)[\w./-]*.{0,60}(?:permission|errno 13|denied|owned by|belongs to)",
        ),
        checks=("cache.owner",),
        sources=("triton-lang/triton#518",),
    ),
    Known(
        id="no-c-compiler",
        vendor="any",
        means="a run-time compiler needs the system's C compiler or Python's headers, which slim images lack.",
        remedies=(
            root("Debian, Ubuntu", "sudo apt-get install gcc libc6-dev python3-dev"),
            root("Fedora, RHEL", "sudo dnf install gcc python3-devel"),
            do("portagemm's GPU backends need neither"),
        ),
        phrases=(
            "Failed to find C compiler. Please specify via CC environment variable",
            "fatal error: Python.h: No such file or directory",
        ),
        patterns=(
            r"Python\.h[\"':>]{0,3} ?:? .{0,40}(?:no such file|not found|nicht gefunden|aucun fichier|no existe|没有|存在しない|нет такого)",
            r"(?:fatal error|schwerer fehler|erreur fatale|error fatal|致命的错误): ?Python\.h",
            r"(?:failed|unable|cannot|could not) (?:to )?find (?:a |any )?(?:working |suitable )?C(?:\+\+)? compiler",
            r"No (?:working )?C(?:\+\+)? compiler (?:was )?found",
            r"InvalidCxxCompiler",
            r"(?:command|error:).{0,20}'(?:x86_64-linux-gnu-)?(?:gcc|cc|g\+\+|clang)'.{0,10} failed: ?no such file",
            r"\[Errno 2\].{0,60}'(?:gcc|cc|g\+\+|c\+\+)'",
            r"(?:gcc|cc|g\+\+): (?:command )?not found",
        ),
        checks=("tool.cc", "tool.python-h"),
        sources=(_TRITON,),
    ),
    Known(
        id="p2p-acs",
        vendor="any",
        means="peer-to-peer traffic between GPUs goes wrong or hangs: PCI Access Control Services (ACS) or the IOMMU"
        " redirect it through the CPU.",
        remedies=(
            root("see whether ACS is on: SrcValid+", "sudo lspci -vvv | grep -i acsctl"),
            reboot("switch ACS off in the firmware's setup, and boot with iommu=pt"),
            do("until then keep NCCL from using it", "export NCCL_P2P_DISABLE=1"),
        ),
        patterns=(
            r"(?:NCCL|RCCL).{0,160}(?:(?-i:ACS)|Access Control Services|IOMMU)(?![a-z])",
            r"Missing ?\"?iommu=pt\"?",
            r"(?:P2P|peer-?to-?peer|peer access).{0,120}(?:(?<!c)hang|hung|stuck|corrupt|wrong (?:data|result)|incorrect)",
            r"(?:(?<!c)hang|hung|stuck|corrupt|wrong|incorrect).{0,120}(?:P2P|peer-?to-?peer)",
            r"ACSCtl:.{0,20}SrcValid\+",
            r"NUMA auto balancing enabled which can lead to variability",
            r"(?:DMAR|AMD-Vi|IOMMU).{0,80}(?:(?<!de)fault|IO_PAGE_FAULT|PTE Read access is not set)",
        ),
        checks=("cluster.acs", "amd.host-tuning", "smoke.p2p"),
        sources=(_NCCL, "NVIDIA/nccl#257", "NVIDIA/nccl#606"),
    ),
    Known(
        id="nccl-ranks-differ",
        vendor="any",
        means="a collective hangs or gets a message of the wrong size: ranks differ in GPU, NCCL, plugin, NIC or"
        " environment, or one rank took another way through the program.",
        remedies=(
            do("compare the ranks before the start", "torchrun ... -m portagemm.doctor --cluster"),
            do("let NCCL say what it sees", "export NCCL_DEBUG=WARN"),
        ),
        phrases=("Watchdog caught collective operation timeout",),
        patterns=(
            r"message truncated.{0,60}(?:receiv|sent|bytes|size)?",
            r"(?:Mismatched|different|incompatible|mismatch in|wrong) NCCL versions?",
            r"NCCL (?:version|library).{0,60}(?:mismatch|differ|does not match|incompatible)",
            r"(?:collective operation|ALLREDUCE|allreduce|ALLGATHER|BROADCAST|COALESCED).{0,80}time(?:d )?-?out",
            r"NCCL.{0,80}(?:timed ?-?out|timeout (?:error|occur|waiting|after|exceeded)|(?<!c)hang|hung|stuck)",
            r"Detected mismatch between collectives",
        ),
        checks=("cluster.gpu", "cluster.nccl", "cluster.driver", "cluster.hca", "cluster.env"),
        sources=(_NCCL, "NVIDIA/nccl#794", "vllm-project/vllm#20282"),
    ),
    Known(
        id="duplicate-gpu",
        vendor="any",
        means="two ranks of one host use the same GPU.",
        remedies=(
            do("set each rank's device", "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"),
            do("look for a mask that gives every rank the same GPU, such as CUDA_VISIBLE_DEVICES=0"),
        ),
        phrases=("Duplicate GPU detected : rank",),
        patterns=(r"Duplicate GPU detected", r"rank \d+ and rank \d+ both on (?:CUDA|HIP|ROCm|GPU)? ?device"),
        checks=("cluster.duplicate-gpu",),
        sources=("vllm-project/vllm#1241",),
    ),
    Known(
        id="memlock",
        vendor="any",
        means="InfiniBand or RoCE cannot register memory: the limit on locked memory is too low.",
        remedies=(
            root("limits.conf: `* soft memlock unlimited` and `* hard memlock unlimited`, then log in again"),
            Remedy("container", "docker run --ulimit memlock=-1 --cap-add IPC_LOCK ...", host=True),
            root("Slurm: PropagateResourceLimitsExcept=MEMLOCK, and LimitMEMLOCK=infinity in slurmd's unit"),
        ),
        patterns=(
            r"ibv_(?:reg_mr|create_cq|create_qp|exp_reg_mr|alloc)\w*.{0,120}(?:allocate memory|ENOMEM|errno 12|error 12|\(12\)|failed|speicher|mémoire|memoria)",
            r"Ib failure: Cannot allocate memory",
            r"(?:memory registration|ib_umem_get).{0,80}(?:failed|memlock|cannot allocate)|mlx\d\w*:.{0,80}(?:memlock|cannot allocate)",
            r"(?:memlock|locked memory).{0,60}too (?:low|small)",
        ),
        checks=("limits.memlock",),
        sources=(_NCCL, "NVIDIA/nccl-tests#206", "openucx/ucx#8229"),
    ),
    Known(
        id="slurm-no-gres",
        vendor="any",
        means="the job was started without GPUs of its own (no --gres): Slurm shows them but does not let the job open"
        " them.",
        remedies=(do("ask for them", "srun --gres=gpu:1 ...   (or --gpus-per-task=1)"),),
        patterns=(
            r"(?:slurm|srun(?!n)|sbatch|SLURM_\w+|pyxis|enroot).{0,300}(?:NoDevFiles|no devices? (?:were )?found|No CUDA|no GPU|operation not permitted.{0,40}/dev/nvidia|/dev/nvidia\S*.{0,40}not permitted)",
            r"NoDevFiles",
            r"ConstrainDevices.{0,120}(?:denied|not permitted|no)",
        ),
        checks=("cluster.slurm",),
        sources=("https://slurm.schedmd.com/gres.html", "NVIDIA/pyxis#47", "ray-project/ray#7014"),
    ),
    Known(
        id="apptainer-glibc",
        vendor="any",
        means="the host's driver libraries, bound into the image by --nv or --rocm, need a newer glibc than the image"
        " has; or the image's own libcuda comes before them.",
        remedies=(
            do("take an image with a newer glibc (of a newer distribution)"),
            do("in the image, put /.singularity.d/libs first on LD_LIBRARY_PATH"),
        ),
        patterns=(
            r"(?:/\.singularity\.d/libs/|singularity|apptainer).{0,200}(?:GLIBC_\d|libcuda|libc\.so)",
            r"GLIBC_\d+\.\d+.{0,4} ?not found.{0,120}(?:libcuda|libnvidia|libdrm|singularity|apptainer)",
            r"lib(?:cuda|nvidia|drm_amdgpu|hsa)[\w-]*\.so.{0,120}GLIBC_\d",
        ),
        checks=("container.apptainer",),
        sources=("https://apptainer.org/docs/user/latest/gpu.html", "apptainer/apptainer#598"),
    ),
    Known(
        id="gemm-fails-though-available",
        vendor="any",
        means="is_available() asks only whether a driver answers; the build may still hold no code for the GPU, or a"
        " library may be broken. Only running a kernel shows it.",
        remedies=(
            do("run one GEMM of each type", "portagemm doctor --smoke"),
            do("compare architectures", "python -c 'import torch; print(torch.cuda.get_arch_list())'"),
        ),
        patterns=(
            r"(?:CUBLAS_STATUS|HIPBLAS_STATUS|rocblas_status)_?(?:NOT_INITIALIZED|EXECUTION_FAILED|ARCH_MISMATCH|INTERNAL_ERROR|NOT_SUPPORTED|arch_mismatch|internal_error)",
            r"is_available\(\).{0,20}True.{0,600}(?:error|fail|no kernel)",
            r"(?:cublas|hipblas|rocblas)\w* ?failed|when calling .{0,6}(?:cublas|hipblas)",
        ),
        checks=("torch.arch", "smoke.gemm"),
        sources=("strands-labs/robots#2908",),
    ),
)
