"""CUDA's error numbers that say something of the machine, as the runtime and the driver number them.

Both APIs share these numbers since CUDA 11; the names differ. Source: driver_types.h and cuda.h of CUDA 12.9.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CudaCode:
    """One error number.

    Attributes:
        code: the number. runtime, driver: its names in the two APIs ("" where one has none).
        means: what it says of the machine, one sentence without a full stop.
        advice: what to do, one sentence without a full stop.
    """

    code: int
    runtime: str
    driver: str
    means: str
    advice: str

    @property
    def name(self) -> str:
        """The driver's name, else the runtime's."""
        return self.driver or self.runtime


_TABLE = (
    (2, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY",
     "the device, or the pinned memory of the host, is full",
     "see with nvidia-smi who holds the memory; ask for smaller blocks"),
    (3, "cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED",
     "the driver could not initialise",
     "read the kernel log for nvidia-uvm; on new kernels set `options nvidia_uvm uvm_disable_hmm=1`"),
    (34, "cudaErrorStubLibrary", "CUDA_ERROR_STUB_LIBRARY",
     "the libcuda that was loaded is the toolkit's link-time stub",
     "take the stubs folder out of LD_LIBRARY_PATH"),
    (35, "cudaErrorInsufficientDriver", "",
     "the driver is older than the CUDA family of the program needs",
     "install a newer driver, or a build for an older CUDA"),
    (36, "cudaErrorCallRequiresNewerDriver", "",
     "this call needs a newer driver", "install a newer driver"),
    (46, "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "every device is busy, prohibited or in exclusive use",
     "look at compute mode and processes with nvidia-smi; `nvidia-smi -c 0` allows sharing"),
    (98, "cudaErrorInvalidDeviceFunction", "",
     "the program holds no code of this function for this device",
     "install a build for this device's architecture"),
    (100, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE",
     "no CUDA device is visible",
     "check CUDA_VISIBLE_DEVICES, the device nodes and the container's GPU options"),
    (101, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE",
     "the device number is not one of the visible devices",
     "number devices from 0 within CUDA_VISIBLE_DEVICES; name MIG slices by UUID"),
    (102, "cudaErrorDeviceNotLicensed", "CUDA_ERROR_DEVICE_NOT_LICENSED",
     "the virtual GPU has no licence", "license the vGPU client (nvidia-gridd)"),
    (200, "cudaErrorInvalidKernelImage", "CUDA_ERROR_INVALID_IMAGE",
     "the kernel image is damaged or of another kind", "clear the kernel cache; reinstall the package"),
    (209, "cudaErrorNoKernelImageForDevice", "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "the program holds no kernel for this device's architecture",
     "install a build for this device's architecture"),
    (214, "cudaErrorECCUncorrectable", "CUDA_ERROR_ECC_UNCORRECTABLE",
     "an uncorrectable memory error was found",
     "drain and reset the GPU; if it returns, have the board replaced"),
    (218, "cudaErrorInvalidPtx", "CUDA_ERROR_INVALID_PTX",
     "the driver refused the PTX", "compile for the exact architecture instead of PTX"),
    (220, "cudaErrorNvlinkUncorrectable", "CUDA_ERROR_NVLINK_UNCORRECTABLE",
     "an NVLink failed", "see `nvidia-smi nvlink -e`; reset the GPUs of the node"),
    (221, "cudaErrorJitCompilerNotFound", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
     "libnvidia-ptxjitcompiler is missing", "install the driver's full library package"),
    (222, "cudaErrorUnsupportedPtxVersion", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the PTX is newer than the driver",
     "update the driver, or compile to the device's exact architecture"),
    (223, "cudaErrorJitCompilationDisabled", "CUDA_ERROR_JIT_COMPILATION_DISABLED",
     "PTX compilation is switched off", "unset CUDA_DISABLE_PTX_JIT"),
    (304, "cudaErrorOperatingSystem", "CUDA_ERROR_OPERATING_SYSTEM",
     "a call to the operating system failed, often for lack of /dev/nvidia-uvm",
     "run `nvidia-modprobe -u -c=0`; check the device nodes"),
    (700, "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS",
     "a kernel read or wrote memory that is not its own",
     "a fault of the program: run it under compute-sanitizer"),
    (719, "cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED",
     "a kernel stopped with a fault",
     "read the kernel log for Xid lines; run the program under compute-sanitizer"),
    (801, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED",
     "this GPU, vGPU profile, MIG slice or WSL does not have the operation",
     "fall back to plain allocation and copies"),
    (802, "cudaErrorSystemNotReady", "CUDA_ERROR_SYSTEM_NOT_READY",
     "the NVSwitch fabric is not ready: Fabric Manager does not run or is of another version",
     "install nvidia-fabricmanager of exactly the driver's version and start it"),
    (803, "cudaErrorSystemDriverMismatch", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "libcuda and the kernel module are of different versions",
     "reboot after a driver update; take compat folders out of LD_LIBRARY_PATH"),
    (804, "cudaErrorCompatNotSupportedOnDevice", "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
     "a forward-compatibility libcuda was loaded on a GPU that does not support it",
     "take the compat folder out of the library path, or update the host's driver"),
    (805, "cudaErrorMpsConnectionFailed", "CUDA_ERROR_MPS_CONNECTION_FAILED",
     "the MPS server cannot be reached",
     "start nvidia-cuda-mps-control, or unset CUDA_MPS_PIPE_DIRECTORY"),
    (806, "cudaErrorMpsRpcFailure", "CUDA_ERROR_MPS_RPC_FAILURE",
     "the MPS server stopped answering", "restart nvidia-cuda-mps-control"),
    (807, "cudaErrorMpsServerNotReady", "CUDA_ERROR_MPS_SERVER_NOT_READY",
     "the MPS server restarts or recovers from a fault", "wait, then try again"),
    (808, "cudaErrorMpsMaxClientsReached", "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
     "too many processes use the MPS server", "run fewer processes a GPU"),
    (809, "cudaErrorMpsMaxConnectionsReached", "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
     "the MPS server has no connection left", "lower CUDA_DEVICE_MAX_CONNECTIONS"),
    (810, "cudaErrorMpsClientTerminated", "CUDA_ERROR_MPS_CLIENT_TERMINATED",
     "another client of the MPS server failed and took this one with it",
     "find the client that failed; restart nvidia-cuda-mps-control"),
    (999, "cudaErrorUnknown", "CUDA_ERROR_UNKNOWN",
     "the driver failed for a reason it does not name, often a stale or missing nvidia-uvm",
     "reload nvidia_uvm, or run `nvidia-modprobe -u -c=0`, or reboot"),
)  # fmt: skip

#: Number -> what it says.
CUDA_CODES = {row[0]: CudaCode(*row) for row in _TABLE}


def describe(code: int) -> str:
    """``803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH): libcuda and ...``; the bare number if it is not known."""
    known = CUDA_CODES.get(code)
    return f"{code} ({known.name}): {known.means}" if known else f"{code}"
