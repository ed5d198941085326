"""Known messages of NVIDIA's driver, libraries and containers. Form and matching: known.py, match.py."""

from __future__ import annotations

from portagemm.doctor.known import KnownMessage as Known
from portagemm.doctor.known import do, reboot, root, windows

_COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility/"
_WSL = "https://docs.nvidia.com/cuda/wsl-user-guide/"
_TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html"
_XID = "https://docs.nvidia.com/deploy/xid-errors/"
_FABRIC = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"

NVIDIA: tuple[Known, ...] = (
    Known(
        id="driver-mismatch-803",
        vendor="nvidia",
        means="libcuda (user space) and the loaded kernel module are of different versions: the driver was"
        " updated without a reboot, or an image's compat libcuda comes first on the library path.",
        remedies=(
            reboot("after a driver update, reboot: the old kernel module is still loaded", "sudo reboot"),
            do("in a container: remove /usr/local/cuda*/compat from LD_LIBRARY_PATH"),
        ),
        phrases=("system has unsupported display driver / cuda driver combination",),
        codes=(803,),
        checks=("nvidia.userspace-match", "container.compat-libcuda", "nvidia.cuinit"),
        sources=(_COMPATIBILITY, "NVIDIA/nvidia-docker#1256", "llm-d/llm-d#706"),
    ),
    Known(
        id="forward-compat-804",
        vendor="nvidia",
        means="a forward-compatibility libcuda (the cuda-compat package, in many images) was loaded, and this"
        " GPU does not support it: it works only on data-centre GPUs.",
        remedies=(
            do("remove the compat folder from LD_LIBRARY_PATH, or take an image of an older CUDA"),
            root("update the host's driver so that no compat library is needed"),
        ),
        phrases=("forward compatibility was attempted on non supported HW",),
        codes=(804,),
        checks=("container.compat-libcuda", "nvidia.cuinit"),
        sources=(_COMPATIBILITY, "NVIDIA/nvidia-docker#1515", "microsoft/onnxruntime#21435"),
    ),
    Known(
        id="fabric-not-ready-802",
        vendor="nvidia",
        means="the NVSwitch fabric is not initialised: Fabric Manager is missing, stopped, or not of exactly the"
        " driver's version.",
        remedies=(
            root("install nvidia-fabricmanager of exactly the driver's version"),
            root("start it now and at every boot", "sudo systemctl enable --now nvidia-fabricmanager"),
            do("look at the fabric's state: it must be Completed", "nvidia-smi -q | grep -A 3 Fabric"),
        ),
        phrases=("system not yet initialized",),
        patterns=(r"fabric manager .{0,60}(?:not running|version mismatch|inactive|failed to start)",),
        codes=(802,),
        checks=("nvidia.fabric", "nvidia.cuinit"),
        sources=(_FABRIC, "pytorch/pytorch#35710"),
    ),
    Known(
        id="fabric-manager-without-nvswitch",
        vendor="nvidia",
        means="Fabric Manager found no NVSwitch. On a machine without NVSwitch it is not needed: this is no error.",
        remedies=(root("switch it off", "sudo systemctl disable --now nvidia-fabricmanager"),),
        phrases=("request to query NVSwitch device information from NVSwitch driver failed with error",),
        patterns=(
            r"NV_WARN_NOTHING_TO_DO",
            r"fabric-?manager.{0,200}NOTHING_TO_DO",
            r"failed to initialize .{0,30}NVSwitch.{0,40}(?:no devices|not found|nothing)",
        ),
        checks=("nvidia.fabric",),
        sources=(_FABRIC,),
    ),
    Known(
        id="cuda-unknown-999",
        vendor="nvidia",
        means="the driver fails for a reason it does not name: most often nvidia_uvm is stale after suspend and"
        " resume, or /dev/nvidia-uvm is missing.",
        remedies=(
            root("create the device nodes of nvidia_uvm", "sudo nvidia-modprobe -u -c=0"),
            root(
                "or reload it while no CUDA process runs", "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm"
            ),
            reboot("reboot, if that does not help", "sudo reboot"),
        ),
        phrases=(
            "CUDA unknown error - this may be due to an incorrectly set up environment",
            "changing env variable CUDA_VISIBLE_DEVICES after program start",
        ),
        patterns=(r"cu(?:da)?[a-z]{0,20}\W{0,40}unknown error",),
        codes=(999, 304),
        checks=("nvidia.devnodes", "nvidia.cuinit"),
        sources=("pytorch/pytorch#49081", "JuliaGPU/CUDA.jl#605"),
    ),
    Known(
        id="cuinit-3-hmm",
        vendor="nvidia",
        means="CUDA cannot initialise although nvidia-smi works: on some kernels nvidia-uvm cannot reserve"
        " address space for heterogeneous memory management (HMM) when KASLR is on.",
        remedies=(
            reboot(
                "switch heterogeneous memory management off",
                'echo "options nvidia_uvm uvm_disable_hmm=1" | sudo tee /etc/modprobe.d/nvidia-uvm.conf',
            ),
            reboot("or boot with nokaslr"),
        ),
        patterns=(
            r"devmem_alloc_pagemap",
            r"request_free_mem_region\(\) .{0,20}-34",
        ),
        weak=(
            r"CUDA.{0,40}initialization error",
            r"cuInit\W{0,4}(?:0\W{0,3})?(?:returned|failed|=|:|->|err)\W{0,4}3(?!\d)",
        ),
        unless=(r"fork", r"stub"),
        codes=(3,),
        checks=("nvidia.hmm", "nvidia.cuinit"),
        sources=(
            "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/",
            "NVIDIA/open-gpu-kernel-modules#797",
        ),
    ),
    Known(
        id="no-kernel-image",
        vendor="nvidia",
        means="the program holds no code for this GPU: the build predates the GPU's architecture (sm_120 needs"
        " CUDA 12.8 or later), or it dropped it (builds for CUDA 13 begin at sm_75).",
        remedies=(
            do(
                "compare the build's list with the device",
                "python -c 'import torch; print(torch.cuda.get_arch_list())'",
            ),
            do(
                "GPU newer than the build: install a build for a newer CUDA, such as the cu128 or cu130 wheels"
            ),
            do("GPU older than sm_75: install the cu126 wheels"),
        ),
        phrases=(
            "no kernel image is available for execution on the device",
            "is not compatible with the current PyTorch installation",
            "cuda capability that PyTorch no longer supports",
        ),
        patterns=(
            r"no kernel image .{0,30}(?:device|found|available)",
            r"CUDA capability sm_\d+ is not compatible",
            r"with CUDA capability sm_\d+",
            r"(?:minimum|supports?) .{0,30}cuda capability .{0,40}is \d+\.\d",
        ),
        weak_codes=(98,),
        codes=(209,),
        checks=("torch.arch", "tool.arch"),
        sources=("pytorch/pytorch#149845", "pytorch/pytorch#167244", "Comfy-Org/ComfyUI#16438"),
    ),
    Known(
        id="ptx-newer-than-driver-222",
        vendor="nvidia",
        means="the program's PTX was made by a toolkit newer than the driver, whose compiler cannot read it."
        " Machine code (cubin) of the same toolkit would run.",
        remedies=(
            root("update the driver to the toolkit's packaged version"),
            do("or compile for the device's exact architecture (-arch=sm_XY), or with an older toolkit"),
        ),
        phrases=("the provided PTX was compiled with an unsupported toolchain",),
        patterns=(
            r"PTX .{0,20}version \d+\.\d+ .{0,40}(?:does not support|not supported|unsupported)",
            r"Unsupported \.version \d+\.\d+",
        ),
        codes=(222,),
        checks=("tool.ptx-vs-driver", "nvidia.driver-min"),
        sources=(_COMPATIBILITY, "NVIDIA/nvbandwidth#61"),
    ),
    Known(
        id="driver-too-old",
        vendor="nvidia",
        means="the driver is older than the CUDA family the program was built for: 13.x needs 580, 12.x needs"
        " 525, 11.x needs 450.",
        remedies=(
            root("install a driver of at least the family's minimum"),
            do("or a build for an older CUDA, by the index URL of its wheel"),
        ),
        phrases=(
            "The NVIDIA driver on your system is too old",
            "CUDA driver version is insufficient for CUDA runtime version",
            "please update your driver to a newer version, or use an earlier cuda container",
        ),
        patterns=(r"unsatisfied condition: cuda ?>= ?\d+",),
        codes=(35, 36),
        checks=("nvidia.driver-min",),
        sources=(_COMPATIBILITY, "pytorch/pytorch#4546"),
    ),
    Known(
        id="nvcc-differs-from-torch",
        vendor="nvidia",
        means="an extension is being built by a CUDA toolkit of another major version than the one torch was"
        " built with. It matters for building extensions only, not for running torch.",
        remedies=(
            do("name the toolkit of torch.version.cuda's version", "export CUDA_HOME=/usr/local/cuda-X.Y"),
            do("or install a torch wheel of the toolkit's version"),
        ),
        phrases=("mismatches the version that was used to compile PyTorch",),
        patterns=(
            r"detected CUDA version .{0,20}mismatches",
            r"CUDA_MISMATCH_MESSAGE",
        ),
        checks=("tool.nvcc-vs-torch",),
        sources=("vllm-project/vllm#1453", "pytorch/pytorch#73047"),
    ),
    Known(
        id="nvml-version-mismatch",
        vendor="nvidia",
        means="libnvidia-ml is newer than the loaded kernel module: the driver package was updated, often by"
        " unattended upgrades, and the old module is still loaded.",
        remedies=(
            reboot("reboot", "sudo reboot"),
            root(
                "or stop all GPU processes and reload the modules",
                "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia",
            ),
        ),
        phrases=("Failed to initialize NVML: Driver/library version mismatch",),
        patterns=(
            r"driver/library version mismatch",
            r"NVML_ERROR_LIB_RM_VERSION_MISMATCH",
            r"API mismatch: the (?:client|NVIDIA kernel module) .{0,200}(?:kernel module|version)",
            r"NVML library version: ?\d+\.\d+",
        ),
        checks=("nvidia.userspace-match",),
        sources=("intel/llvm#21625",),
    ),
    Known(
        id="nvml-unknown-in-container",
        vendor="nvidia",
        means="a running container lost its right to the GPU's device nodes: `systemctl daemon-reload` rewrote"
        " the device cgroup. The nodes are there, opening them is refused.",
        remedies=(
            do("restart the container"),
            root("for good: use CDI (--device nvidia.com/gpu=all), or name the nodes with --device"),
            root('or set "exec-opts": ["native.cgroupdriver=cgroupfs"] in /etc/docker/daemon.json'),
        ),
        phrases=("Failed to initialize NVML: Unknown Error",),
        patterns=(
            r"NVML(?:_ERROR_UNKNOWN|: ?Unknown Error)",
            r"nvmlInit\w*.{0,20}unknown error",
        ),
        checks=("container.device-open",),
        sources=(_TOOLKIT, "NVIDIA/nvidia-container-toolkit#48"),
    ),
    Known(
        id="nvml-insufficient-permissions",
        vendor="nvidia",
        means="SELinux, AppArmor or the user namespace forbids opening the GPU's device nodes.",
        remedies=(
            do("podman: switch label confinement off", "podman run --security-opt=label=disable ..."),
            do("check the modes of /dev/nvidia*"),
        ),
        phrases=("Failed to initialize NVML: Insufficient Permissions",),
        patterns=(r"NVML_ERROR_NO_PERMISSION",),
        checks=("container.device-open",),
        sources=(
            "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html",
        ),
    ),
    Known(
        id="libcuda-missing",
        vendor="nvidia",
        means="libcuda.so.1, a part of the driver, is not found. In a container where nvidia-smi works,"
        " NVIDIA_DRIVER_CAPABILITIES lacks `compute`; in WSL, /usr/lib/wsl/lib is not on the library path.",
        remedies=(
            do(
                "container: ask for the compute library",
                "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
            ),
            root(
                "WSL: rebuild the loader's cache, or add /usr/lib/wsl/lib to LD_LIBRARY_PATH", "sudo ldconfig"
            ),
            root("else install the driver: libcuda.so.1 comes with it, not with the toolkit"),
        ),
        phrases=("libcuda.so.1: cannot open shared object file: No such file or directory",),
        patterns=(
            (
                r"libcuda\.so(?:\.1|\.\d[\d.]*)?\"?'?[:,] (?!undefined|version|symbol|file exists|not installed|.{0,12}=>)"
                r".{0,40}(?:open|[öo]ffn|ouvr|abrir|apri|не удается|не удалось|打开|開|nicht|ne peut|impos|no such|not found)"
            ),
            r"libcuda\.so(?:\.1)? .{0,12}(?:cannot be found|cannot found|could ?n.t be found|not found|missing)",
            r"(?:could not|cannot|unable to|failed to|couldn't) (?:find|load|locate|open|dlopen) .{0,40}libcuda\.so",
            r"libcuda\.so =>? ?not found",
            r"nvcuda\.dll.{0,40}(?:not found|could not)",
        ),
        checks=("nvidia.libcuda-load", "container.nvidia-caps", "wsl.libs", "wsl.ldconfig"),
        sources=(_WSL, _TOOLKIT, "microsoft/WSL#8587", "NVIDIA/cuda-python#17"),
    ),
    Known(
        id="cuda-fork",
        vendor="nvidia",
        means="CUDA was initialised, then the process forked: a CUDA context does not survive a fork.",
        remedies=(
            do(
                "set the start method, spawn or forkserver, before any process starts",
                "torch.multiprocessing.set_start_method('spawn')",
            ),
            do("touch no GPU in the parent before it starts its workers"),
        ),
        phrases=(
            "Cannot re-initialize CUDA in forked subprocess",
            "To use CUDA with multiprocessing, you must use the 'spawn' start method",
        ),
        patterns=(r"re-?initiali[sz]e (?:CUDA|HIP|GPU) in (?:a )?forked",),
        weak=(r"CUDA.{0,40}(?:initiali[sz]ation error|not initiali[sz]ed).{0,200}fork",),
        checks=("proc.fork",),
        sources=("https://docs.pytorch.org/docs/stable/notes/multiprocessing.html", "pytorch/pytorch#40403"),
    ),
    Known(
        id="nvjitlink-symbol",
        vendor="nvidia",
        means="an older libnvJitLink (or another CUDA library) from LD_LIBRARY_PATH is loaded in place of the one"
        " that the wheel brings.",
        remedies=(
            do("take the CUDA folders out of LD_LIBRARY_PATH, or unset it", "unset LD_LIBRARY_PATH"),
            do("see which copies are found, in which order", "portagemm doctor --only 'libs.*' --verbose"),
        ),
        phrases=("undefined symbol: __nvJitLink",),
        patterns=(
            r"_{0,2}nvJitLink(?:Complete|AddData|Create|GetLinked|Destroy)\w*.{0,40}(?:libnvJitLink|undefined|not defined)",
            r"lib(?:cusparse|cublas(?:Lt)?|cusolver|cudnn\w*|nvrtc|cudart|torch_cuda)\.so[\d.]*: undefined symbol",
            r"lib(?:cublas(?:Lt)?|cudart|nvrtc|cudnn\w*)\.so[\d.]*: version [`'\"]?lib\w+\.so[\d.]*['\"]? not found",
        ),
        checks=("libs.duplicates",),
        sources=("pytorch/pytorch#111469", "pytorch/pytorch#134929"),
    ),
    Known(
        id="stub-libcuda-34",
        vendor="nvidia",
        means="the libcuda that was loaded is the toolkit's link-time stub, which does nothing.",
        remedies=(do("take the folder .../lib64/stubs out of LD_LIBRARY_PATH"),),
        phrases=("CUDA driver is a stub library",),
        codes=(34,),
        checks=("libs.stubs", "nvidia.libcuda-load"),
        sources=("https://docs.nvidia.com/cuda/cuda-runtime-api/",),
    ),
    Known(
        id="wsl-no-adapters",
        vendor="nvidia",
        means="WSL has no GPU: the Windows driver is too old or lacks WSL support, the GPU is switched off for"
        " WSL, or the distribution runs under WSL1.",
        remedies=(
            windows("update NVIDIA's Windows driver (495 or later)"),
            windows("update WSL", "wsl --update; wsl --shutdown"),
            windows("turn the distribution into WSL2", "wsl --set-version <distribution> 2"),
        ),
        phrases=("WSL environment detected but no adapters were found",),
        patterns=(
            r"(?:dxcore|libdxcore|WSL).{0,60}no adapters?(?: were| was)? found",
            r"dxcore.{0,40}enumerat.{0,20}fail",
        ),
        checks=("wsl.dxg", "wsl.version", "wsl.libs"),
        sources=(_WSL, "NVIDIA/nvidia-container-toolkit#155"),
    ),
    Known(
        id="linux-driver-inside-wsl",
        vendor="nvidia",
        means="a Linux display driver is installed inside WSL or inside the image, where the libraries of the"
        " host are mounted: the two collide.",
        remedies=(
            root(
                "remove the driver",
                "sudo apt-get remove --purge '^nvidia-driver-.*' '^libnvidia-.*' cuda-drivers",
            ),
            root("install only the toolkit: cuda-toolkit-12-x, never the packages cuda or cuda-drivers"),
        ),
        phrases=("libnvidia-ml.so.1: file exists",),
        patterns=(
            r"lib(?:nvidia|cuda)[\w-]*\.so[\d.]*\W{1,4}(?:file exists|EEXIST|.{0,20}errno 17)",
            r"mount error: .{0,120}libnvidia-ml\.so[\d.]*.{0,60}(?:exists|existiert|existe)",
        ),
        checks=("wsl.linux-driver-inside",),
        sources=(_WSL, "NVIDIA/nvidia-container-toolkit#289"),
    ),
    Known(
        id="cuda-out-of-memory",
        vendor="nvidia",
        means="the device is full; or, with free device memory and a pinned allocation, WSL's limit on pinned"
        " memory is reached.",
        remedies=(
            do("see who holds the memory", "nvidia-smi"),
            do("WSL: use pageable host memory or smaller blocks"),
            windows("raise memory= under [wsl2] in .wslconfig, then restart WSL", "wsl --shutdown"),
        ),
        phrases=("failed to allocate pinned memory",),
        patterns=(
            r"(?:pin(?:ned)?[-_ ]?memory|cudaHostAlloc|cudaMallocHost|cuMemHostAlloc|cuMemAllocHost|cudaHostRegister|CUDA_Host).{0,160}(?:out of memory|failed|error)",
            r"(?:out of memory|failed).{0,80}(?:pinned (?:host )?(?:memory|buffer)|pin_memory)",
            r"failed to allocate .{0,60}pinned",
        ),
        weak=(r"CUDA.{0,12}out of memory",),
        weak_codes=(2,),
        checks=("wsl.limits", "smoke.pinned"),
        sources=(_WSL, "microsoft/WSL#8447", "ggml-org/llama.cpp#1594"),
    ),
    Known(
        id="mig-device-id",
        vendor="nvidia",
        means="MIG is on: slices are named by UUID, not by number, and one process sees a single slice.",
        remedies=(
            do("list the slices", "nvidia-smi -L"),
            do("name one of them in each process", "export CUDA_VISIBLE_DEVICES=MIG-<UUID>"),
        ),
        patterns=(
            r"invalid (?:device id|literal for int\(\)).{0,120}MIG-",
            r"MIG-[0-9a-f/-]{4,}.{0,120}invalid (?:device|literal)",
            r"(?-i:MIG).{0,120}(?:device (?:ordinal|id|number)|index).{0,40}(?:invalid|out of range)",
        ),
        weak=(r"(?:AssertionError|ValueError|CUDA error|RuntimeError): invalid device (?:id|ordinal)",),
        weak_codes=(101,),
        checks=("nvidia.mig",),
        sources=(
            "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
            "vllm-project/vllm#6551",
            "pytorch/pytorch#130181",
        ),
    ),
    Known(
        id="cuda-not-supported-801",
        vendor="nvidia",
        means="this GPU's vGPU profile, MIG slice or WSL lacks an operation: virtual memory management, IPC or"
        " stream-ordered allocation.",
        remedies=(
            do("fall back to plain allocation (torch: PYTORCH_CUDA_ALLOC_CONF without expandable_segments)"),
            do("query the device attribute before use"),
        ),
        patterns=(
            r"(?:CUDA|cu[a-z]{2,30}|cudaError|ggml_cuda\w*|current device).{0,80}operation not supported(?! on global)",
            r"operation not supported.{0,80}(?:cu(?:da)?(?:Mem|Malloc|Ipc|Device)[a-z]+)",
        ),
        codes=(801,),
        checks=("nvidia.vgpu", "nvidia.mig", "wsl.limits"),
        sources=("ollama/ollama#8980", "dmlc/xgboost#12217"),
    ),
    Known(
        id="devices-unavailable-46",
        vendor="nvidia",
        means="no context can be made: the GPU is in exclusive-process or prohibited compute mode, or a stuck"
        " process holds it.",
        remedies=(
            do("look at the compute mode", "nvidia-smi --query-gpu=index,compute_mode --format=csv"),
            root("set compute mode Default", "sudo nvidia-smi -c 0"),
            do("look for a process that should not be there", "nvidia-smi"),
        ),
        phrases=(
            "all CUDA-capable devices are busy or unavailable",
            "CUDA-capable device(s) is/are busy or unavailable",
        ),
        codes=(46,),
        checks=("nvidia.compute-mode", "nvidia.cuinit"),
        sources=("pytorch/pytorch#3871",),
    ),
    Known(
        id="xid-hardware",
        vendor="nvidia",
        means="the driver reported a fault of the hardware, its link or its firmware.",
        remedies=(
            root(
                "read the Xid number; NVIDIA's Xid documentation says what it means",
                "sudo dmesg | grep -i xid",
            ),
            root(
                "drain the node and reset the GPU (79 needs a power cycle)",
                "sudo nvidia-smi --gpu-reset -i N",
            ),
            do("if it returns, run the diagnosis and have the board replaced", "dcgmi diag -r 3"),
        ),
        phrases=("GPU has fallen off the bus", "uncorrectable ECC error encountered"),
        patterns=(
            r"Xid .{0,40}?[:, ](?:46|48|61|62|63|64|74|79|92|94|95|109|110|119|120|140|143|154)(?![\d:.])[, :(]",
            r"Xid (?:error )?(?:code )?(?:48|63|64|79|94|95|109|119|120|140)(?!\d)",
            r"fallen off the bus",
            r"row remapp\w+ (?:failure|pending)",
        ),
        codes=(214, 220),
        checks=("nvidia.xid", "nvidia.ecc"),
        sources=(_XID, "pytorch/pytorch#74235"),
    ),
    Known(
        id="xid-application",
        vendor="nvidia",
        means="a kernel read or wrote memory that is not its own, or faulted in another way: usually a fault of the"
        " program, not of the machine.",
        remedies=(do("find the access", "compute-sanitizer python your_program.py"),),
        phrases=("an illegal memory access was encountered", "unspecified launch failure"),
        patterns=(r"Xid .{0,40}?[:, ](?:13|31)(?![\d:.])[, :(]",),
        codes=(700, 719),
        checks=("nvidia.xid",),
        sources=(_XID,),
    ),
    Known(
        id="gpu-throttled",
        vendor="nvidia",
        means="the GPU lowers its clocks: power cap, temperature or power supply.",
        remedies=(
            do("see the reason", "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE"),
            root("raise the power limit, if the board allows it", "sudo nvidia-smi -pl WATTS"),
            do("HW slowdown: check cooling and power cables"),
        ),
        patterns=(
            r"(?:SW|software)_?power_?(?:cap|capping)[:|=]{1,3}active",
            r"(?:HW|hardware|SW)_?(?:thermal_?)?(?:slow ?down|power brake(?: slowdown)?)[:|=]{1,3}active",
            r"(?:HW|SW) ?(?:thermal )?slow ?down (?:is )?active",
            r"clocks?_?(?:throttle|event)_?reasons?.{0,40}(?:hw_|sw_|0x0*[1-9a-f])",
            r"power brake slowdown",
            r"(?:GPU|clock)\w* .{0,30}(?:is |was |are |being )?(?<!un)(?<!not)throttl(?:ed|ing)(?! (?:reasons?|status)? ?:? ?(?:none|no|not|0))",
        ),
        checks=("nvidia.throttle",),
        sources=("https://docs.nvidia.com/deploy/nvidia-smi/",),
    ),
    Known(
        id="pcie-link-degraded",
        vendor="any",
        means="the PCIe link runs below what card and slot allow: riser, slot or bifurcation. A low *speed* on an"
        " idle GPU is normal, a low *width* is not.",
        remedies=(
            do("read /sys/bus/pci/devices/<address>/{current,max}_link_{speed,width} while the GPU works"),
            do("reseat the card, try another slot, check bifurcation in the firmware's setup"),
        ),
        phrases=("available PCIe bandwidth, limited by",),
        patterns=(
            r"LnkSta:.{0,60}downgraded",
            r"PCIe .{0,40}(?:gen|generation|width|link).{0,60}(?:below|lower than|less than|downgraded|reduced|degraded)",
            r"link width .{0,40}(?:below|lower|x\d+ .{0,12}x\d+)",
        ),
        checks=("nvidia.pcie",),
        sources=("https://docs.nvidia.com/datacenter/dcgm/",),
    ),
    Known(
        id="module-signature-rejected",
        vendor="any",
        means="Secure Boot is on and the kernel module is not signed by a key the firmware knows.",
        remedies=(
            reboot(
                "enrol the module's key, also at the next boot",
                "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der",
            ),
            root("or install the distribution's signed driver package (Ubuntu: linux-modules-nvidia-*)"),
            reboot("or switch Secure Boot off in the firmware"),
        ),
        phrases=(
            "Key was rejected by service",
            "module verification failed: signature and/or required key missing",
        ),
        patterns=(
            r"(?:modprobe|insmod)\W.{0,60}(?:nvidia|amdgpu).{0,60}(?:key|schl[üu]ssel|cl[ée]|clave|chiave|密钥|キー).{0,60}",
            r"Loading of unsigned module is (?:rejected|restricted)",
            r"Lockdown: .{0,40}unsigned module loading is restricted",
            r"Required key not available",
            r"errno:? ?\(?(?:126|127|128|129)\)?.{0,40}(?:nvidia|amdgpu)\.ko",
        ),
        checks=("nvidia.module", "amd.module"),
        sources=("https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",),
    ),
    Known(
        id="nouveau-bound",
        vendor="nvidia",
        means="the kernel's nouveau driver holds the GPU, so NVIDIA's driver cannot.",
        remedies=(
            root(
                "keep nouveau from loading",
                "echo blacklist nouveau | sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
            ),
            reboot("rebuild the initial RAM disk (Fedora, RHEL: dracut --force)", "sudo update-initramfs -u"),
        ),
        phrases=("The Nouveau kernel driver is currently in use by your system",),
        patterns=(
            r"driver such as: .{0,60}nouveau",
            r"NVRM:.{0,200}(?:rivafb|nvidiafb|nouveau)",
            r"already bound .{0,60}nouveau",
            r"Kernel driver in use: nouveau",
        ),
        checks=("nvidia.pci",),
        sources=("https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",),
    ),
    Known(
        id="no-cuda-device",
        vendor="nvidia",
        means="no CUDA device is visible: the driver is not loaded, the container has no GPU, or a mask hides all.",
        remedies=(
            do("see what is missing", "portagemm doctor --require-gpu=nvidia"),
            do("check CUDA_VISIBLE_DEVICES; in a container run with --gpus all"),
        ),
        phrases=(
            "no CUDA-capable device is detected",
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
            "No CUDA GPUs are available",
            "Found no NVIDIA driver on your system",
            'could not select device driver "" with capabilities: [[gpu]]',
        ),
        codes=(100,),
        checks=("nvidia.module", "nvidia.devnodes", "container.nvidia-visible"),
        sources=(_TOOLKIT,),
    ),
    Known(
        id="silent-cpu",
        vendor="any",
        means="the program runs on the CPU because it found no usable GPU, and says so only in passing, or not at all."
        " A CPU-only build of torch also reports no GPU.",
        remedies=(
            do("fail where there is no usable GPU: exit code 1", "portagemm doctor --require-gpu"),
            do("install a torch wheel for the GPU: the index URL decides between +cpu, +cuNNN and +rocmX.Y"),
        ),
        phrases=("Torch not compiled with CUDA enabled", "CUDA is not available, falling back to CPU"),
        patterns=(
            r"fall(?:ing|s|en)? ?back to (?:the )?cpu",
            r"(?:GPU|CUDA|ROCm|HIP) (?:is |was |support )?(?:not available|unavailable|not found|not detected).{0,60}(?:using|use|defaulting to|running on|on) (?:the )?cpu",
            r"running on (?:the )?cpu (?:only|instead)",
            r"(?:torch\.cuda\.)?is_available\(\).{0,20}False",
        ),
        checks=("torch.flavour", "nvidia.module"),
        sources=("mdegans/drama_llama#82",),
    ),
    Known(
        id="vgpu-not-licensed",
        vendor="nvidia",
        means="the virtual GPU has no licence: it is refused or throttled.",
        remedies=(
            root("install the client configuration token, then see", "sudo systemctl status nvidia-gridd"),
        ),
        phrases=("the device is not licensed", "Unlicensed (Unrestricted)"),
        patterns=(
            r"vGPU.{0,60}(?:unlicensed|licen[sc]e .{0,30}(?:fail|expired|not))",
            r"license status ?: ?unlicensed",
        ),
        codes=(102,),
        checks=("nvidia.vgpu",),
        sources=("https://docs.nvidia.com/vgpu/",),
    ),
    Known(
        id="mps-failure",
        vendor="nvidia",
        means="the MPS server does not run, restarts, or lost a client.",
        remedies=(do("start it, or unset CUDA_MPS_PIPE_DIRECTORY", "nvidia-cuda-mps-control -d"),),
        phrases=("MPS client failed to connect to the MPS control daemon or the MPS server",),
        patterns=(
            r"CUDA_ERROR_MPS_\w+",
            r"cudaErrorMps\w+",
        ),
        codes=(805, 806, 807, 808, 809, 810),
        checks=("nvidia.mps",),
        sources=("https://docs.nvidia.com/deploy/mps/",),
    ),
    Known(
        id="nvrtc-builtins-missing",
        vendor="nvidia",
        means="NVRTC was found without its builtins library of the same version.",
        remedies=(
            do(
                "install it again (nvidia-cuda-nvrtc-cu12 for CUDA 12)",
                "pip install --force-reinstall nvidia-cuda-nvrtc",
            ),
        ),
        phrases=("failed to open libnvrtc-builtins.so",),
        patterns=(
            r"nvrtc-builtins.{0,40}(?:failed to open|not found|cannot open|no such)",
            r"NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        ),
        checks=("tool.nvrtc",),
        sources=("https://docs.nvidia.com/cuda/nvrtc/",),
    ),
    Known(
        id="ptx-jit-missing",
        vendor="nvidia",
        means="the driver's PTX compiler library is missing from this machine or container.",
        remedies=(
            do("container: NVIDIA_DRIVER_CAPABILITIES must hold compute"),
            root("else install the driver's full library package"),
        ),
        phrases=("PTX JIT compiler library not found",),
        patterns=(r"libnvidia-ptxjitcompiler\.so[\d.]* .{0,40}(?:cannot open|not found|no such)",),
        codes=(221,),
        checks=("nvidia.libcuda-load",),
        sources=(_COMPATIBILITY,),
    ),
)
