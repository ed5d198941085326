"""Log excerpts as people paste them: other versions than the table's, prefixed, wrapped, boxed, cut, translated.

Each names the report it stands for (its number in docs/doctor-coverage.md) and the message it must be
recognised as. HEALTHY holds texts in which nothing is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Excerpt:
    """A text, and what it must be recognised as."""

    report: int
    message: str
    text: str


def _e(report: int, message: str, text: str) -> Excerpt:
    return Excerpt(report, message, text.strip("\n"))


EXCERPTS: tuple[Excerpt, ...] = (
    _e(
        1,
        "driver-mismatch-803",
        """
UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before
calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display
driver / cuda driver combination (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:108.)""",
    ),
    _e(1, "driver-mismatch-803", "failed call to cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    _e(
        1,
        "driver-mismatch-803",
        'llama_init: ggml_cuda_init: failed, code=803(cudaErrorSystemDriverMismatch) "cuInit"',
    ),
    _e(
        2,
        "forward-compat-804",
        """
[rank3]:  File "/opt/venv/lib/python3.12/site-packages/torch/cuda/__init__.py", line 372, in _lazy_init
[rank3]:    torch._C._cuda_init()
[rank3]: RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non
[rank3]: supported HW""",
    ),
    _e(
        2,
        "forward-compat-804",
        "onnxruntime CUDA failure 804: forward compatibility was attempted on non supp...",
    ),
    _e(
        3,
        "fabric-not-ready-802",
        """
2026-03-02T08:11:09Z worker-7 jaxlib[811]: E cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY:
2026-03-02T08:11:09Z worker-7 jaxlib[811]: system not yet initialized""",
    ),
    _e(
        3,
        "fabric-not-ready-802",
        "cudaGetDeviceCount returned 802\n-> system not yet initialized\nResult = FAIL",
    ),
    _e(
        4,
        "fabric-manager-without-nvswitch",
        """
Feb 11 09:00:12 box nv-fabricmanager[2231]: Connected to 1 node.
Feb 11 09:00:12 box nv-fabricmanager[2231]: request to query NVSwitch device information from NVSwitch driver failed
Feb 11 09:00:12 box nv-fabricmanager[2231]: with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]""",
    ),
    _e(
        5,
        "cuda-unknown-999",
        """
UserWarning: CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment, e.g.
changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.""",
    ),
    _e(
        5,
        "cuda-unknown-999",
        "ERROR: CUDA error: unknown error (code 999, ERROR_UNKNOWN) in cuDevicePrimaryCtxRetain",
    ),
    _e(
        6,
        "cuinit-3-hmm",
        """
[   12.204411] nvidia-uvm: devmem_alloc_pagemap: nvidia-uvm: request_free_mem_region() err -34
time=2026-01-03 level=INFO msg="unable to load cuda driver library" error="cuda driver library init failure: 3" """,
    ),
    _e(6, "cuinit-3-hmm", "cuInit(0) returned 3 (CUDA_ERROR_NOT_INITIALIZED) although nvidia-smi is fine"),
    _e(
        7,
        "no-kernel-image",
        """
NVIDIA GeForce RTX 5070 Ti with CUDA capability sm_120 is not compatible with the current PyTorch installation.
The current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90.""",
    ),
    _e(
        7,
        "no-kernel-image",
        """
│ RuntimeError: CUDA error: no kernel image is available for execution on  │
│ the device                                                               │
│ Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.      │""",
    ),
    _e(
        8,
        "no-kernel-image",
        """
Found GPU0 NVIDIA GeForce GTX 1060 6GB which is of cuda capability 6.1.
Minimum and Maximum cuda capability supported by this version of PyTorch is (7.5) - (12.0)
torch.AcceleratorError: CUDA error: no kernel image is available for exec""",
    ),
    _e(
        8,
        "no-kernel-image",
        "Tesla V100-SXM2 ... which is of cuda capability 7.0 ... terminate: cudaErrorNoKernelImageForDevice",
    ),
    _e(
        9,
        "ptx-newer-than-driver-222",
        """
Invoking cuModuleLoadData failed. Error: CUDA_ERROR_UNSUPPORTED_PTX_VERSION "the provided PTX was compiled with an
unsupported toolchain.""",
    ),
    _e(9, "ptx-newer-than-driver-222", 'DriverError(222, "the provided PTX was compiled with an unsupp'),
    _e(
        9,
        "ptx-newer-than-driver-222",
        "ptxas application ptx input, line 9; fatal   : Unsupported .version 9.2; current version is '9.0'",
    ),
    _e(
        10,
        "driver-too-old",
        """
RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by
downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx""",
    ),
    _e(
        10,
        "driver-too-old",
        """
docker: Error response from daemon: OCI runtime create failed: nvidia-container-cli: requirement error: unsatisfied
condition: cuda>=12.9, please update your driver to a newer version, or use an earlier cuda container""",
    ),
    _e(10, "driver-too-old", "CUDA error: CUDA driver version is insufficient for CUDA runtime vers"),
    _e(
        11,
        "nvcc-differs-from-torch",
        """
      RuntimeError:
      The detected CUDA version (13.0) mismatches the version that was used to compile
      PyTorch (12.8). Please make sure to use the same CUDA versions.""",
    ),
    _e(
        12,
        "nvml-version-mismatch",
        """
$ nvidia-smi
Failed to initialize NVML: Driver/library version mismatch
NVML library version: 580.95""",
    ),
    _e(
        12,
        "nvml-version-mismatch",
        """
Oct 03 06:31:40 node4 kernel: NVRM: API mismatch: the client has the version 570.172.08, but
Oct 03 06:31:40 node4 kernel: NVRM: this kernel module has the version 570.158.01.  Please""",
    ),
    _e(
        13,
        "nvml-unknown-in-container",
        "#  nvidia-smi -L\nFailed to initialize NVML: Unknown Error\n# exit 255",
    ),
    _e(
        13,
        "nvml-unknown-in-container",
        "pynvml.NVMLError_Unknown raised: NVML: Unknown Error after systemctl daemon-reload",
    ),
    _e(
        14,
        "libcuda-missing",
        """
ImportError: libcuda.so.1: cannot open shared object file: No such file or
directory""",
    ),
    _e(
        14,
        "libcuda-missing",
        """
./llama-server: error while loading shared libraries: libcuda.so.1: Kann die Shared-Object-Datei nicht öffnen: Datei
oder Verzeichnis nicht gefunden""",
    ),
    _e(
        14,
        "libcuda-missing",
        "OSError: libcuda.so.1: Ne peut ouvrir le fichier d'objet partagé: Aucun fichier ou dossier de ce type",
    ),
    _e(
        15,
        "shm-full",
        """
c7f1:89:402 [2] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device
c7f1:89:402 [2] NCCL INFO include/shm.h:41 -> 2""",
    ),
    _e(
        15,
        "shm-full",
        """
pod/train-0:1204:1377 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-eLxVbq to 33030532 bytes,
pod/train-0:1204:1377 [0] error: Auf dem Gerät ist kein Speicherplatz mehr verfügbar (28)""",
    ),
    _e(15, "shm-full", "Error while creating shared memory segment /dev/shm/nccl-Yd2kk1 (size 9637888)"),
    _e(
        15,
        "shm-full",
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that data...",
    ),
    _e(
        16,
        "cuda-fork",
        """
RuntimeError: Cannot re-initialize CUDA in forked
 subprocess. To use CUDA with multiprocessing, you must use the ‘spawn’ start method""",
    ),
    _e(16, "cuda-fork", "(EngineCore_DP0 pid=310) RuntimeError: Cannot re-initialize CUDA in fork"),
    _e(
        17,
        "nvjitlink-symbol",
        """
ImportError: /opt/conda/lib/python3.11/site-packages/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12:
undefined symbol: __nvJitLinkGetErrorLogSize_12_9, version libnvJitLink.so.12""",
    ),
    _e(
        17,
        "nvjitlink-symbol",
        "symbol lookup error: libcublasLt.so.12: undefined symbol: cublasLtZZZMatmul, version libcublasLt.so.12",
    ),
    _e(
        18,
        "glibcxx-not-found",
        """
ImportError: /home/ada/miniconda3/envs/ml/bin/../lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by
/home/ada/ext/_k2.so)""",
    ),
    _e(
        18,
        "glibcxx-not-found",
        "libstdc++.so.6: Version »GLIBCXX_3.4.29« nicht gefunden (benötigt von ./librocblas.so.4)",
    ),
    _e(
        18,
        "glibcxx-not-found",
        "version 'CXXABI_1.3.15' not found (required by /opt/rocm/lib/libmigraphx.so.2)",
    ),
    _e(
        19,
        "libcuda-missing",
        """
  File "/home/me/.venv/lib/python3.12/site-packages/triton/backends/nvidia/driver.py", line 24, in libcuda_dirs
AssertionError: libcuda.so cannot found!
Possible files are located at ['/usr/lib/wsl/lib/libcuda.so.1'].""",
    ),
    _e(
        19,
        "libcuda-missing",
        'Unable to dynamically load the "cuda" shared library - failed to load libcuda.so under Ubuntu on WSL',
    ),
    _e(
        20,
        "cuda-out-of-memory",
        "ggml_cuda_host_malloc: failed to allocate 3896.00 MiB of pinned memory: out of memory",
    ),
    _e(
        20,
        "cuda-out-of-memory",
        """
  File "/home/u/load.py", line 88, in stage
    buffer = torch.empty(n, dtype=torch.float16).pin_memory()
RuntimeError: CUDA error: out of memory""",
    ),
    _e(20, "cuda-out-of-memory", "cudaHostAlloc(4294967296) failed: cudaErrorMemoryAllocation (2)"),
    _e(
        21,
        "wsl-no-adapters",
        """
nvidia-container-cli: initialization error: WSL environment detected but no
adapters were found: unknown.""",
    ),
    _e(
        21,
        "wsl-no-adapters",
        "docker: ... nvidia-container-cli: initialization error: WSL environment detected but no adap",
    ),
    _e(
        22,
        "linux-driver-inside-wsl",
        """
nvidia-container-cli: mount error: file creation failed: /var/lib/docker/overlay2/3f/merged/usr/lib/x86_64-linux-gnu/
libnvidia-ml.so.1: file exists: unknown.""",
    ),
    _e(
        22,
        "linux-driver-inside-wsl",
        "mount error: file creation failed: /merged/usr/lib/x86_64-linux-gnu/libcuda.so.1: file exists",
    ),
    _e(
        23,
        "wsl-rocm-no-gpu",
        """
me@PC:~$ uname -r
5.15.167.4-microsoft-standard-WSL2
me@PC:~$ rocminfo
ROCk module is NOT loaded, possibly no GPU devices""",
    ),
    _e(
        23,
        "wsl-rocm-no-gpu",
        "On WSL2 Ubuntu 24.04 with an RX 7900 XTX: ls: cannot access '/dev/kfd': No such file or directory",
    ),
    _e(
        24,
        "librocdxg-mixed",
        """
Cannot load librocdxg.so: /opt/rocm-7.2.1/lib/librocdxg.so:
undefined symbol: hsaKmtOpenKFDCtx""",
    ),
    _e(
        24,
        "librocdxg-mixed",
        "rocminfo: symbol lookup error: /opt/rocm/lib/libhsa-runtime64.so.1: undefined symbol: hsaKmtOpenKFD",
    ),
    _e(
        25,
        "rocprofiler-agents",
        """
F20260301 10:02:44.812 agent.cpp:911] Found 1 rocprofiler agents and
 3 HSA agents. Aborted (core dumped)""",
    ),
    _e(
        26,
        "hip-no-binary",
        """
"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"
Aborted (core dumped)""",
    ),
    _e(26, "hip-no-binary", ":1:hip_fatbin.cpp:265 : 103 us: No compatible code objects found for: gfx1036"),
    _e(
        27,
        "hip-invalid-device-function",
        """
RuntimeError: HIP error: invalid device func
tion
HIP kernel errors might be asynchronously reported at some other API call. AMD_SERIALIZE_KERNEL=3""",
    ),
    _e(
        27,
        "hip-invalid-device-function",
        "hipLaunchKernel returned hipErrorInvalidDeviceFunction on gfx1103 (HSA_OVERRIDE_GFX_VERSION=11.0.0)",
    ),
    _e(
        28,
        "hip-invalid-image",
        "torch.AcceleratorError: HIP error: device kernel image is invalid (hipErrorInvalidImage, 200)",
    ),
    _e(28, "hip-invalid-image", "HIP error 200: hipModuleLoadData: device kernel image is inva"),
    _e(
        29,
        "rocblas-tensile-missing",
        """
rocBLAS error: Cannot read /opt/rocm-6.4.3/lib/llvm/bin/../../../lib/rocblas/library/TensileLibrary.dat: No such file
or directory for GPU arch : gfx1103
 List of available TensileLibrary Files :""",
    ),
    _e(29, "rocblas-tensile-missing", "rocBLAS error: Could not initialize Tensile host: No devices found"),
    _e(
        30,
        "hipblaslt-unsupported",
        """
[W123 Context.cpp:318] Warning: Attempting to use hipBLASLt on a unsupported architecture! Overriding blas backend to
hipblas (function operator())""",
    ),
    _e(
        31,
        "kfd-permission",
        """
ROCk module version 6.14.14 is loaded
Unable to open /dev/kfd read-write: Permission denied
bob is not member of "render" group, the default DRM access group. Users must be a member of the "render" group""",
    ),
    _e(31, "kfd-permission", "Unable to open /dev/kfd read-write: Permiso denegado"),
    _e(
        31,
        "kfd-permission",
        """
hsa api call failure at: /long_pathname_so_that_rpms_can_package_the_debug_info/src/rocminfo/rocminfo.cc:1306
Call returned HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources.""",
    ),
    _e(
        32,
        "kfd-refused-gpu",
        """
ROCk module is loaded
Unable to open /dev/kfd read-write: Bad address
ada is member of render group
hsa api call failure at: /src/rocminfo/rocminfo.cc:1142""",
    ),
    _e(
        32,
        "kfd-refused-gpu",
        'openat(AT_FDCWD, "/dev/kfd", O_RDWR|O_CLOEXEC) = -1 ENOMEM (No se pudo asignar memoria)',
    ),
    _e(32, "kfd-refused-gpu", "[    3.548555] kfd kfd: amdgpu: PITCAIRN  not supported in kfd"),
    _e(33, "amdgpu-not-loaded", "\x1b[37mROCk module is NOT loaded, possibly no GPU devic\x1b[0m"),
    _e(33, "amdgpu-not-loaded", "ERROR:root:Driver not initialized (amdgpu not found in modules)"),
    _e(
        34,
        "kfd-no-atomics",
        "[    5.120009] kfd kfd: amdgpu: skipped device 1002:6fdf, PCI rejects atomics 730<0",
    ),
    _e(34, "kfd-no-atomics", "Your CPU and board: missing PCIe atomics, ROCm will not use this GPU"),
    _e(
        35,
        "kfd-permission",
        """
root@5d0c:/# rocminfo
Unable to open /dev/kfd read-write: Operation not permitted""",
    ),
    _e(
        35,
        "kfd-permission",
        'time=2026 level=WARN source=amd_linux.go:61 msg="amdgpu devices: open /dev/dri/renderD129: permission denied"',
    ),
    _e(
        36,
        "double-mask",
        """
(TaskRunner pid=99812) AssertionError: Please use HIP_VISIBLE_DEVICES instead of ROCR_VISIBLE_DEVICES""",
    ),
    _e(
        36,
        "double-mask",
        """
ROCR_VISIBLE_DEVICES=2,3
HIP_VISIBLE_DEVICES=2,3
RuntimeError: No HIP GPUs are available""",
    ),
    _e(
        37,
        "igpu-chosen",
        "Found 2 ROCm devices: Device 0: gfx1036 (AMD Radeon Graphics) ... Segmentation fault (core dumped)",
    ),
    _e(
        37,
        "igpu-chosen",
        "Memory access fault by GPU node-2 (Agent handle: 0x55) on address 0x7f. Reason: page not present (iGPU first)",
    ),
    _e(
        38,
        "stale-file-handle",
        """
(worker pid=8123, ip=10.1.2.3) OSError: [Errno 116] Veraltete Dateizugriffsnummer (file handle):
(worker pid=8123, ip=10.1.2.3) '/shared/home/x/.triton/cache/ab12/__triton_launcher.so'""",
    ),
    _e(38, "stale-file-handle", "cp: cannot stat '/nfs/u/.cache/torch/inductor/k.so': Stale NFS file handle"),
    _e(39, "cache-not-writable", "PermissionError: [Errno 13] Permission denied: '/.triton'"),
    _e(
        39,
        "cache-not-writable",
        "  os.makedirs(cache_dir)\nOSError: [Errno 30] Read-only file system: '/home/nb/.triton/cache'",
    ),
    _e(39, "cache-not-writable", "PermissionError: [Errno 13] Keine Berechtigung: '/.cache/portagemm'"),
    _e(
        40,
        "cache-noexec",
        """
ImportError: /tmp/torchinductor_a/4q/c4q.so: failed to map segment from
shared object""",
    ),
    _e(40, "cache-noexec", "OSError: /scratch/pg/k.so: failed to map segm…"),
    _e(41, "cache-other-owner", "PermissionError: [Errno 13] Permission denied: '/tmp/triton/cache/7b1f'"),
    _e(
        41,
        "cache-other-owner",
        "PermissionError: [Errno 1] Operation not permitted: '/tmp/torchinductor_shared'",
    ),
    _e(
        42,
        "no-c-compiler",
        """
RuntimeError: Failed to find C compiler. Please specify via CC environment
variable or set triton.knobs.build.impl.""",
    ),
    _e(
        42,
        "no-c-compiler",
        "/tmp/tmpq1/main.c:5:10: schwerer Fehler: Python.h: Datei oder Verzeichnis nicht gefunden",
    ),
    _e(42, "no-c-compiler", "FileNotFoundError: [Errno 2] No such file or directory: 'gcc'"),
    _e(
        43,
        "p2p-acs",
        """
gpu1:77:90 [0] NCCL INFO P2P is enabled ...
simpleP2P: Verification error @ element 1: peer access gives wrong data; lspci: ACSCtl: SrcValid+ TransBlk-""",
    ),
    _e(
        43,
        "p2p-acs",
        'rccl WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!',
    ),
    _e(
        44,
        "nccl-ranks-differ",
        """
h2:31:55 [0] proxy.cc:1495 NCCL WARN [Service thread] Error encountered progressing operation
h2:31:55 [0] transport/net_socket.cc:515 NCCL WARN NET/Socket : peer 10.0.0.8 message truncated : receiving 1048576
 bytes instead of 65536""",
    ),
    _e(
        44,
        "nccl-ranks-differ",
        """
[rank1]:[E714 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1,
[rank1]: OpType=ALLREDUCE, NumelIn=1) ran for 600042 milliseconds before timing out.""",
    ),
    _e(
        44,
        "nccl-ranks-differ",
        "NCCL WARN Mismatched NCCL version detected : rank 8 has 2.27.3, rank 0 has 2.21.5",
    ),
    _e(
        45,
        "duplicate-gpu",
        "init.cc:943 NCCL WARN Duplicate GPU detected : rank 3 and rank 1 both on CUDA device 1b000",
    ),
    _e(45, "duplicate-gpu", "RCCL: rank 5 and rank 4 both on HIP device c1000"),
    _e(
        46,
        "memlock",
        "h1:9:31 [3] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ),
    _e(46, "memlock", "UCX ERROR ibv_create_cq(cqe=4096) failed: No se pudo asignar memoria"),
    _e(
        46,
        "memlock",
        "terminate called after throwing 'mscclpp::IbError' what(): (Ib failure: Cannot allocate memory)",
    ),
    _e(
        47,
        "mig-device-id",
        """
ValueError: invalid literal for int() with base 10: 'MIG-9dd0a8a6-8a12-5d3c-b3ab-8d2f5b1c20f7'""",
    ),
    _e(
        47,
        "mig-device-id",
        "RuntimeError: CUDA error: invalid device ordinal  # CUDA_VISIBLE_DEVICES=0,1, A100 in MIG mode",
    ),
    _e(47, "mig-device-id", "AssertionError: Invalid device id"),
    _e(
        48,
        "cuda-not-supported-801",
        """
CUDA error: operation not supported
  current device: 0, in function alloc at /ggml/src/ggml-cuda/ggml-cuda.cu:432
  cuMemCreate(&handle, reserve_size, &prop, 0)""",
    ),
    _e(48, "cuda-not-supported-801", "cudaMallocAsync: cudaErrorNotSupported: operation not supp"),
    _e(
        49,
        "devices-unavailable-46",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    ),
    _e(
        49,
        "devices-unavailable-46",
        "F0411 common.cpp:66] cudaErrorDevicesUnavailable (46) all CUDA-capable devices are busy",
    ),
    _e(
        50,
        "xid-hardware",
        "[1849201.112233] NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off",
    ),
    _e(
        50,
        "xid-hardware",
        "Jun 1 02:03:04 n7 kernel: NVRM: Xid (PCI:0000:1b:00): 109, pid=811, name=python, Ch 00000008",
    ),
    _e(50, "xid-hardware", "CUDA error: uncorrectable ECC error encountered"),
    _e(51, "pcie-link-degraded", "\tLnkSta:\tSpeed 8GT/s (downgraded), Width x8 (downgraded)"),
    _e(
        51,
        "pcie-link-degraded",
        """
pci 0000:41:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at 0000:40:01.1""",
    ),
    _e(
        52,
        "gpu-throttled",
        """
    Clocks Event Reasons
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active""",
    ),
    _e(52, "gpu-throttled", "gpu2: HW Thermal Slowdown | Active"),
    _e(
        53,
        "module-signature-rejected",
        "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
    ),
    _e(
        53,
        "module-signature-rejected",
        "modprobe: ERROR: could not insert 'nvidia': Der Schlüssel wurde vom Dienst abgelehnt",
    ),
    _e(53, "module-signature-rejected", "[   8.1] Loading of unsigned module is rejected"),
    _e(
        54,
        "nouveau-bound",
        """
NVRM: This can occur when another driver was loaded and
NVRM: obtained ownership of the NVIDIA device(s).
NVRM: Try unloading the conflicting kernel module (and/or reconfigure your kernel without nouveau)""",
    ),
    _e(
        54,
        "nouveau-bound",
        "01:00.0 VGA compatible controller: NVIDIA GA102\n\tKernel driver in use: nouveau",
    ),
    _e(
        55,
        "slurm-no-gres",
        """
$ srun --pty python -c 'import torch; torch.zeros(1).cuda()'
RuntimeError: No CUDA GPUs are available
srun: error: node12: task 0: Exited with exit code 1""",
    ),
    _e(55, "slurm-no-gres", "(raylet) slurm job 4411: GPU detection raised NoDevFiles"),
    _e(
        56,
        "apptainer-glibc",
        """
python3: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by
 /.singularity.d/libs/libGLdispatch.so.0)""",
    ),
    _e(56, "apptainer-glibc", "libhsa-runtime64.so.1: version 'GLIBC_2.38' not found under Apptainer"),
    _e(
        57,
        "gemm-fails-though-available",
        """
>>> torch.cuda.is_available()
True
>>> (a @ b).sum()
RuntimeError: CUDA error: CUBLAS_STATUS_ARCH_MISMATCH when calling `cublasGemmEx( handle, opa, opb, m, n, k`""",
    ),
    # as reporters wrote them, restated
    _e(
        5,
        "cuda-unknown-999",
        "panic: CUDA_ERROR_UNKNOWN\n\ngoroutine 1 [running, locked to thread]: cu.CtxCreate(0x2, 0x0)",
    ),
    _e(
        5,
        "cuda-unknown-999",
        "CUDA error 999: unknown error\n  current device: -1, in function init at ggml-cuda.cu:7801",
    ),
    _e(
        15,
        "shm-full",
        "job:2:235 Error while creating shared memory segment /dev/shm/nccl-WU (size 9",
    ),
    _e(
        15,
        "shm-full",
        "NCCL WARN Error while creating shared memory segment nccl-shm-recv-1462445a6f01-1-2-3 (size 9637888)",
    ),
    _e(
        27,
        "hip-invalid-device-function",
        """
ERROR 05-15 18:58:58 [engine.py:448] RuntimeError: HIP error: invalid
ERROR 05-15 18:58:58 [engine.py:448] device function""",
    ),
    _e(
        27,
        "hip-invalid-device-function",
        ":3:hip_module.cpp :797 : 958 us: hipLaunchKernel: Returned hipErrorInvalidDeviceFunction : : 4603 us",
    ),
    _e(31, "kfd-permission", "hsa_init failed with 0x1008 (out of resources)"),
    _e(32, "kfd-refused-gpu", "[    2.721238] amdgpu 0000:02:00.0: kfd not supported on this ASIC"),
    _e(58, "silent-cpu", "WARN  GPU not found, using CPU: tests will be slow"),
    _e(58, "silent-cpu", "AssertionError: Torch not compiled with CUDA enab"),
)

#: Texts of healthy machines and of other troubles: nothing must be found in them.
HEALTHY: tuple[str, ...] = (
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025",
    "804 files processed, 803 passed, 0 errors; 999 warnings suppressed",
    "\tlibcuda.so.1 => /lib/x86_64-linux-gnu/libcuda.so.1 (0x00007f0000000000)",
    "GET /api/v1/jobs HTTP/1.1 status 200; returned 209 rows in 46 ms, cache result 3",
    "CUDA 12.8, driver 570.124.06, 2 devices; torch.cuda.is_available(): True",
    "PermissionError: [Errno 13] Permission denied: '/var/log/messages'",
    "OSError: [Errno 28] No space left on device: '/data/out.bin'",
    "FileNotFoundError: [Errno 2] No such file or directory: 'config.yaml'",
    "Clocks Event Reasons\n    Idle : Active\n    SW Power Cap : Not Active\n    HW Slowdown : Not Active",
    "LnkSta: Speed 32GT/s, Width x16",
    "kfd kfd: amdgpu: added device 1002:74a1\namdgpu 0000:c1:00.0: amdgpu: ring gfx uses VM inv eng 0 on hub 0",
    "ROCk module is loaded\nada is member of render group",
    "NCCL INFO NCCL version 2.27.3+cuda12.9\nNCCL INFO Connected all rings",
    "ValueError: shapes (3,4) and (5,6) not aligned",
    "ModuleNotFoundError: No module named 'triton'",
    "nvidia-container-cli: ok\nGPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000)",
    "The fabric is ready. State: Completed, Status: Success",
    "libstdc++.so.6 => /usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "mount: /dev/shm tmpfs size=64G",
    "Downloading torch-2.8.0+cu128 (888.0 MB)\nSuccessfully installed nvidia-nvjitlink-cu12-12.8.93",
    "checking for gcc... /usr/bin/gcc\n#include <Python.h>",
    "step 803: loss 2.04, error 0.802, 999 tokens/s",
    "CUDA memory: error 802 MiB? no: 46 GiB free, cudaMemGetInfo = 3.1 GB",
    "slurmstepd: task 0 done; gres/gpu:4 allocated",
    "train.py --device=cuda:0 --epochs=100 --layers=3 --accumulate=2",
    "cuda tests finished, exit code 2; 46 passed; status: 3 skipped",
    "torch.cuda.device_count() = 2, cudaGetDeviceProperties: ok",
    "ggml_cuda_init: found 1 ROCm devices:\n  Device 0: AMD Radeon Graphics, gfx1103 (0x1103), VMM: no, Wave Size: 32",
    "CUDA_VISIBLE_DEVICES: GPU_DEVICE_ORDINAL: HIP_VISIBLE_DEVICES: HSA_OVERRIDE_GFX_VERSION: ROCR_VISIBLE_DEVICES:",
    "  Name:    gfx1036\n  Uuid:   GPU-XX\n  Marketing Name:          AMD Radeon Graphics",
    "NCCL INFO Using network IB\nNCCL INFO comm 0x55 rank 2 nranks 8 - Init COMPLETE",
    "CUDA error rate 3% below target; 2 retries; accuracy 100%",
    # words that hold other words once spaces are gone: Default, exchange, multi GPU, is running, unlimited, migration
    "iommu: Default domain type: Translated\nDMAR: IOMMU enabled\nAMD-Vi: AMD IOMMUv2 loaded and initialized",
    "NCCL INFO P2P/CUMEM: exchange of handles done, settings changed\npeer-to-peer enabled",
    "ProcessGroupNCCL initialization options: size: 8, global rank: 0, TIMEOUT(ms): 600000, COORD: 0",
    "multi GPU training; changes to the multi GPU scheduler are not supported before step 10",
    "server is running on port 80; no GPU workers are configured for this queue",
    "max locked memory (kbytes, -l) unlimited\nopen files (-n) 1048576\nmemlock: unlimited",
    "database migration 12: index of device ids valid; relationship of chips: image list complete",
    "PermissionError: [Errno 13] Permission denied: '/etc/nginx/config'",
    (
        "kfd kfd: amdgpu: added\namdgpu: Virtual CRAT table created for GPU\n"
        "amdgpu: Topology: Add dGPU node [0x74a1:0x1002]\nkfd kfd: amdgpu: error getting iommu info"
    ),
    (
        "    Clocks Event Reasons\n        HW Slowdown : Not Active\n            HW Thermal Slowdown : Not Active\n"
        "    Remapped Rows\n        Correctable Error : 0\n    Pending : No\n    Remapping Failure Occurred : No\n"
        "    Compute Mode : Default\n    Xid : none"
    ),
    "THROTTLE_STATUS: UNTHROTTLED\nGPU clocks are not throttled",
    "WSL2 with ROCm: node 0 knows 1 agent, rocminfo lists gfx1100",
    "Is CUDA available: True\nCUDA runtime version: 12.8.93\ncuDNN version: 91002\nIs XNNPACK available: True",
    "MIG mode: Disabled\nMIG M.: N/A",
    "rocBLAS version 4.4.0, hipBLASLt version 0.15.0, Tensile kernels for gfx942 loaded",
    "Secure Boot: disabled; nouveau: not loaded",
    "",
    "   \n\n",
)
