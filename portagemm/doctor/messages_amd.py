"""Known messages of AMD's driver, libraries and containers. Form and matching: known.py, match.py."""

from __future__ import annotations

from portagemm.doctor.check import Remedy
from portagemm.doctor.known import KnownMessage as Known
from portagemm.doctor.known import do, reboot, relogin, root

_INSTALL = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/"
_DOCKER = _INSTALL + "how-to/docker.html"
_MATRIX = "https://rocm.docs.amd.com/en/latest/compatibility/compatibility-matrix.html"
_MASKS = "https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html"
_LIBROCDXG = "https://github.com/ROCm/librocdxg"

AMD: tuple[Known, ...] = (
    Known(
        id="wsl-rocm-no-gpu",
        vendor="amd",
        means="inside WSL there is never a /dev/kfd: ROCm reaches the GPU through librocdxg and /dev/dxg, for Radeon"
        " of the RX 7000 and 9000 series and Ryzen AI only.",
        remedies=(
            root("install librocdxg of the same release as ROCm"),
            do("classic ROCm up to 7.2 also needs a variable", "export HSA_ENABLE_DXG_DETECTION=1"),
        ),
        patterns=(
            r"WSL.{0,160}(?:/dev/kfd|no (?:ROCm|HIP|AMD)|(?:ROCm|rocminfo).{0,60}not (?:found|detect|work|available|see|support))",
            r"microsoft-standard.{0,400}(?:/dev/kfd|hsa api call failure|ROCk module is NOT loaded|no HIP GPUs)",
            r"(?:hipErrorNoDevice|no ROCm-capable device|no HIP GPUs).{0,300}(?:WSL|microsoft-standard|/dev/dxg)",
        ),
        checks=("wsl.rocdxg",),
        sources=(_LIBROCDXG, "ROCm/legacy-rocm-build#3734"),
    ),
    Known(
        id="librocdxg-mixed",
        vendor="amd",
        means="librocdxg and libhsa-runtime64 come from different releases, or a distribution's own libhsakmt hides"
        " ROCm's.",
        remedies=(
            root("install librocdxg and ROCm of the same release"),
            root("remove the distribution's copies", "sudo apt-get remove libhsakmt1 libhsa-runtime64-1"),
        ),
        phrases=("undefined symbol: hsaKmtOpenKFD",),
        patterns=(
            r"librocdxg\.so.{0,200}undefined symbol",
            r"undefined symbol ?:? ?hsaKmt\w+",
            r"(?:cannot|failed to|unable to|couldn't) (?:load|open|dlopen).{0,20}librocdxg",
        ),
        checks=("wsl.rocdxg",),
        sources=(_LIBROCDXG, "ROCm/librocdxg#46"),
    ),
    Known(
        id="rocprofiler-agents",
        vendor="amd",
        means="the profiler bundled with the wheel counts GPUs through /dev/kfd, which WSL does not have, and aborts"
        " because the HSA runtime counts more.",
        remedies=(
            do("switch the profiler's registration off", "export ROCPROFILER_REGISTER_ENABLED=0"),
            do("or install a newer wheel"),
        ),
        patterns=(
            r"Found \d+ rocprofiler agents and \d+ HSA agents",
            r"rocprofiler.{0,60}agents?.{0,60}HSA agents?",
            r"rocprofiler.{0,80}(?:agent count|number of agents).{0,60}(?:differ|mismatch|match)",
        ),
        checks=("wsl.rocdxg",),
        sources=("unslothai/unsloth#11212",),
    ),
    Known(
        id="hip-no-binary",
        vendor="amd",
        means="the program holds no code for one of the GPUs. On a machine with an integrated and a discrete GPU it is"
        " often the integrated one.",
        remedies=(
            do("list the GPUs and their gfx names", "rocminfo | grep -E 'gfx|Uuid|Marketing'"),
            do("install a build for this gfx"),
            do(
                "or show the program only the discrete GPU, by its UUID",
                "export ROCR_VISIBLE_DEVICES=GPU-<UUID>",
            ),
        ),
        phrases=("Unable to find code object for all current devices",),
        patterns=(
            r"hipErrorNoBinaryForGpu",
            r"No compatible code objects found for:? ?gfx\w+",
            r"HIP error:? no kernel image is available",
            r"code object is not compatible with gfx",
            r"no binary for (?:the )?gpu",
        ),
        unless=(r"CUDA error: no kernel image",),
        checks=("amd.gfx-supported", "amd.igpu", "torch.arch"),
        sources=(_MATRIX, "ROCm/legacy-rocm-build#1530", "pytorch/pytorch#73534"),
    ),
    Known(
        id="hip-invalid-device-function",
        vendor="amd",
        means="the build has no code for this gfx, or HSA_OVERRIDE_GFX_VERSION names a gfx whose code the GPU cannot"
        " run.",
        remedies=(
            do("take the override away", "unset HSA_OVERRIDE_GFX_VERSION"),
            do("install a build for this gfx"),
        ),
        phrases=("HIP error: invalid device function",),
        patterns=(
            r"hipErrorInvalidDeviceFunction",
            r"(?-i:ROCm|HIP|hip[A-Z]\w+).{0,80}invalid device function",
            r"invalid device function.{0,200}(?:HIP|AMD_SERIALIZE_KERNEL|ROCm|gfx)",
        ),
        checks=("amd.gfx-supported", "amd.override", "torch.arch"),
        sources=("pytorch/pytorch#132570", "pytorch/pytorch#164346"),
    ),
    Known(
        id="hip-invalid-image",
        vendor="amd",
        means="the device code for this gfx is not installed: wheels of ROCm 7.13 and later bring it by an extra.",
        remedies=(do("install the extra of your gfx", "pip install 'torch[device-gfxNNN]'"),),
        phrases=("HIP error: device kernel image is invalid", "device kernel image is invalid"),
        patterns=(
            r"hipErrorInvalidImage",
            r"(?-i:HIP|hip[A-Z]\w+).{0,60}(?:invalid|bad) (?:kernel |device )?image",
        ),
        unless=(r"CUDA error: device kernel image",),
        checks=("amd.gfx-supported", "torch.arch"),
        sources=("ROCm/TheRock#7839",),
    ),
    Known(
        id="rocblas-tensile-missing",
        vendor="amd",
        means="rocBLAS has no kernel files for this gfx: it is not among the architectures the library was built for,"
        " or ROCBLAS_TENSILE_LIBPATH points elsewhere.",
        remedies=(
            do("take the path away", "unset ROCBLAS_TENSILE_LIBPATH"),
            do("install a ROCm that supports this gfx, or build rocBLAS for it"),
        ),
        phrases=("TensileLibrary.dat: No such file or directory for GPU arch",),
        patterns=(
            r"rocBLAS error:? ?(?:Cannot read|Could not (?:load|initialize)|No (?:such|hip))",
            r"TensileLibrary\w*\.(?:dat|yaml|co)\W.{0,160}(?:no such|cannot|illegal|not found|nicht|aucun)",
            r"(?:cannot|could not|unable to) (?:read|open|load|find).{0,160}Tensile",
        ),
        checks=("amd.blas-files",),
        sources=("ROCm/rocBLAS#1267", "ROCm/rocBLAS#1339"),
    ),
    Known(
        id="hipblaslt-unsupported",
        vendor="amd",
        means="hipBLASLt has no kernels for this gfx and torch uses rocBLAS (hipBLAS) instead: a note, not an error.",
        remedies=(do("silence the note", "export TORCH_BLAS_PREFER_HIPBLASLT=0"),),
        phrases=("Attempting to use hipBLASLt on an unsupported architecture",),
        patterns=(
            r"hipBLASLt.{0,60}(?:unsupported|not supported).{0,40}(?:arch|gfx|gpu|device)",
            r"(?:unsupported|not supported).{0,60}hipBLASLt",
            r"hipBLASLt.{0,120}(?:overriding|fall(?:ing)? ?back).{0,30}hipblas",
        ),
        checks=("amd.blas-files",),
        sources=("pytorch/pytorch#138067",),
    ),
    Known(
        id="kfd-permission",
        vendor="amd",
        means="this user may not open /dev/kfd or the render node: it is not in the group that owns the node. In a"
        " container the host's number of that group counts, and its name there may be another's.",
        remedies=(
            do("see which group owns the nodes", "stat -c '%n %g %G' /dev/kfd /dev/dri/renderD*"),
            relogin("add the user to that group", 'sudo usermod -aG "$(stat -c %G /dev/kfd)" "$USER"'),
            Remedy(
                "container: pass the number of the host's group; rootless podman: --group-add keep-groups",
                'docker run --device /dev/kfd --device /dev/dri --group-add "$(stat -c %g /dev/kfd)" ...',
                host=True,
            ),
        ),
        phrases=("Unable to open /dev/kfd read-write: Permission denied",),
        patterns=(
            r"/dev/(?:kfd|dri/renderD\d+)[\"',:)]{0,3}.{0,60}(?:permission|EACCES|EPERM|errno 13|\(13\)|operation not permitted|keine berechtigung|permission non accord|permiso denegado|permesso negato|权限|許可|отказано)",
            r"(?:permission|access) denied.{0,60}/dev/(?:kfd|dri/renderD\d+)",
            r"is not (?:a )?member of .{0,20}(?:render|video).{0,30}group",
            r"no permission to access .{0,10}/dev/kfd",
        ),
        weak=(r"HSA_STATUS_ERROR_OUT_OF_RESOURCES", r"hsa_init.{0,60}(?:0x1008|4104|out of resources)"),
        checks=("amd.kfd-access", "amd.group-session", "container.render-gid"),
        sources=(_DOCKER, "ROCm/legacy-rocm-build#1088", "ROCm/rocminfo#34", "ollama/ollama#6685"),
    ),
    Known(
        id="kfd-refused-gpu",
        vendor="amd",
        means="the kernel's compute driver did not accept the GPU: no PCIe atomics, a chip it does not support, or not"
        " enough address space. Opening /dev/kfd then fails although the rights are there.",
        remedies=(
            root("read why", "sudo dmesg | grep -iE 'kfd|amdgpu'"),
            do("see which GPUs it took", "grep . /sys/class/kfd/kfd/topology/nodes/*/gpu_id"),
        ),
        patterns=(
            r"/dev/kfd[\"',:)]{0,3}.{0,60}(?:cannot allocate|ENOMEM|EFAULT|bad address|invalid argument|no such device|ENODEV|ENXIO|errno (?:12|14|22))",
            r"kfd.{0,60}(?:not supported (?:in|on)|unsupported).{0,30}(?:kfd|asic|device)?",
            r"kfd:(?!.{0,20}error getting iommu).{0,80}(?:fail|error)",
            r"DID \w+ is missing in supported_devices",
        ),
        weak=(r"HSA_STATUS_ERROR_OUT_OF_RESOURCES", r"hsa_init.{0,60}(?:0x1008|4104|out of resources)"),
        checks=("amd.topology",),
        sources=("ROCm/legacy-rocm-build#1185", "ROCm/legacy-rocm-build#2232"),
    ),
    Known(
        id="amdgpu-not-loaded",
        vendor="amd",
        means="the amdgpu kernel module is not loaded, or this container or WSL cannot see it.",
        remedies=(
            root("load it, and read the kernel log if that fails", "sudo modprobe amdgpu"),
            Remedy(
                "container: pass the devices", "docker run --device /dev/kfd --device /dev/dri ...", host=True
            ),
            reboot("with Secure Boot, enrol the key that signed the DKMS module"),
        ),
        phrases=("ROCk module is NOT loaded, possibly no GPU devices",),
        patterns=(
            r"ROCk module is (?:NOT|not) loaded",
            r"(?:amdgpu|kfd) (?:kernel )?(?:module|driver) (?:is )?not (?:loaded|found|initialized|present)",
            r"(?:unable|failed) to open /dev/kfd.{0,40}no such file",
            r"/dev/kfd.{0,40}(?:no such file|does not exist|not found|ENOENT|datei oder verzeichnis nicht|aucun fichier)",
            r"driver not initialized \(amdgpu not found in modules\)",
        ),
        checks=("amd.module", "amd.kfd-node", "container.kfd"),
        sources=(_INSTALL, "ROCm/rocminfo#42", "ROCm/legacy-rocm-build#1794"),
    ),
    Known(
        id="kfd-no-atomics",
        vendor="amd",
        means="the way from CPU to GPU has no PCIe atomics, which this GPU's compute driver needs.",
        remedies=(
            do("put the card into a slot wired to the CPU, not to the chipset, without a riser"),
            do("or use a newer CPU, mainboard or GPU (RX 5000 and later cards need none)"),
        ),
        patterns=(
            r"PCI(?:e)? rejects atomics",
            r"skipped device 1002:[0-9a-f]{4}",
            r"PCIe? atomics? (?:ops? )?(?:is |are )?(?:not|un)",
            r"(?:lacks?|missing|no|without) PCIe? atomics?",
        ),
        checks=("amd.topology",),
        sources=(
            "https://rocm.docs.amd.com/en/latest/conceptual/pcie-atomics.html",
            "ROCm/legacy-rocm-build#804",
        ),
    ),
    Known(
        id="double-mask",
        vendor="amd",
        means="two layers of masks hide every GPU: ROCR_VISIBLE_DEVICES filters first, then HIP_VISIBLE_DEVICES or"
        " CUDA_VISIBLE_DEVICES number what is left from 0.",
        remedies=(
            do("keep one of them", "unset ROCR_VISIBLE_DEVICES"),
            do("Ray: keep it from setting its own", "export RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES=1"),
        ),
        patterns=(
            r"(?:use|set|unset|both|conflict).{0,60}(?:HIP|CUDA)_VISIBLE_DEVICES.{0,60}ROCR_VISIBLE_DEVICES",
            r"ROCR_VISIBLE_DEVICES=[\"']?\w.{0,160}(?:HIP|CUDA)_VISIBLE_DEVICES.{0,300}(?:no (?:HIP )?GPU|0 GPU|no device|invalid|not available|hipErrorNoDevice|inconsistent|conflict)",
            r"(?:HIP|CUDA)_VISIBLE_DEVICES=[\"']?\w.{0,160}ROCR_VISIBLE_DEVICES.{0,300}(?:no (?:HIP )?GPU|0 GPU|no device|invalid|not available|hipErrorNoDevice|inconsistent|conflict)",
            r"(?:Please use|instead of) (?:HIP|CUDA|ROCR)_VISIBLE_DEVICES.{0,40}(?:instead|ROCR|HIP)",
        ),
        weak=(r"No HIP GPUs are available", r"hipErrorNoDevice", r"no ROCm-capable device is detected"),
        checks=("amd.visible-mask",),
        sources=(_MASKS, "ray-project/ray#52701", "volcengine/verl#1575"),
    ),
    Known(
        id="igpu-chosen",
        vendor="amd",
        means="the runtime works on the integrated GPU, which the library does not support; the program crashes, hangs"
        " or is slow.",
        remedies=(
            do("list all GPUs with their UUIDs", "rocminfo | grep -E 'Uuid|Marketing|gfx'"),
            do("show the program only the discrete one, by UUID", "export ROCR_VISIBLE_DEVICES=GPU-<UUID>"),
            Remedy("or switch the integrated GPU off in the firmware's setup", reboot=True),
        ),
        patterns=(
            r"(?:integrated (?:gpu|graphics|radeon)|(?-i:(?<!mult)iGPU|APU)).{0,120}(?:crash|(?<!c)hang|segfault|segmentation|not supported|unsupported|memory access fault|core dumped)",
            r"(?:crash|(?<!c)hang|segfault|segmentation|memory access fault|core dumped).{0,160}(?:integrated (?:gpu|graphics)|(?-i:(?<!mult)iGPU)|gfx1036|gfx1035|gfx90c)",
            r"(?:using|selected|found|device 0).{0,60}(?:gfx1036|gfx90c|AMD Radeon(?:\(TM\)| TM)? Graphics).{0,400}(?:(?<!de)fault|crash|(?<!c)hang|abort|segmentation|invalid)",
        ),
        weak=(r"Memory access fault by GPU node-\d+",),
        checks=("amd.igpu",),
        sources=("oobabooga/text-generation-webui#7319", "ROCm/rocm-cli#395"),
    ),
    Known(
        id="hip-no-device",
        vendor="amd",
        means="no HIP device is visible: driver, device nodes, rights or a mask.",
        remedies=(do("see what is missing", "portagemm doctor --require-gpu=amd"),),
        phrases=("no ROCm-capable device is detected", "No HIP GPUs are available"),
        patterns=(r"hipErrorNoDevice",),
        checks=("amd.module", "amd.kfd-node", "amd.kfd-access", "amd.visible-mask"),
        sources=(_INSTALL,),
    ),
)
