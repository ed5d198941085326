"""Loading and launching against a driver without a GPU: what arrives there, and every refusal."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time

import pytest

from portagemm.backends.cuda import driver as driver_module
from portagemm.backends.cuda import libcuda
from portagemm.backends.cuda.driver import CudaDriver
from portagemm.hal.errors import LaunchError
from portagemm.hal.program import ArgumentBlock, LaunchConfig, ObjectCode, TensorMap
from portagemm.hal.target import Target

pytestmark = pytest.mark.quick

CODE = ObjectCode(b"\x7fELF code", Target("cuda", "sm_90a", 32), "gemm", "nvrtc 13.0.88")
#: Pointers at 8 and 24, floats at 40 and 44, other bytes that must survive.
BLOCK = ArgumentBlock(bytes(range(64)), (8, 24), (40, 44))
MAPS = ArgumentBlock(
    bytes(512),
    (0, 8),
    (16,),
    (
        TensorMap(1, 128, 2, "bf16", (64, 32), (128,), (64, 16)),
        TensorMap(0, 256, 4, "fp32", (16, 8, 3), (64, 512), (8, 8, 1), 32),
    ),
)


def prepare(config=None, block=BLOCK, code=CODE, device=0, driver=None):
    return (driver or CudaDriver()).prepare(code, config or LaunchConfig(7, 128), block, device)


def test_everything_arrives(fake_cuda):
    launch = prepare(LaunchConfig(1000, 384, 1, 1234))
    launch((0x1122334455667788, 16), (1.5, -2.0), 0xABCDEF0)
    expected = bytearray(BLOCK.template)
    struct.pack_into("<Q", expected, 8, 0x1122334455667788)
    struct.pack_into("<Q", expected, 24, 16)
    struct.pack_into("<ff", expected, 40, 1.5, -2.0)
    assert fake_cuda.arguments(64) == bytes(expected)
    got = {name: fake_cuda.launch(name) for name in ("grid", "grid_yz", "block", "block_yz", "shared")}
    assert got == {"grid": 1000, "grid_yz": 1, "block": 384, "block_yz": 1, "shared": 1234}
    assert fake_cuda.launch("stream") == 0xABCDEF0
    assert fake_cuda.launch("attributes") == 0
    assert fake_cuda.launch("argument_address") % 128 == 0


def test_the_next_call_has_its_own_values(fake_cuda):
    launch = prepare()
    launch((1 << 40, 2 << 40), (1.0, 0.0), 0)
    address = fake_cuda.launch("argument_address")
    launch((3 << 40, 4 << 40), (0.5, 2.0), 9)
    assert struct.unpack_from("<Q", fake_cuda.arguments(64), 8) == (3 << 40,)
    assert struct.unpack_from("<ff", fake_cuda.arguments(64), 40) == (0.5, 2.0)
    assert fake_cuda.launch("argument_address") == address  # the memory of the first call, used again


@pytest.mark.parametrize(("pointers", "scalars"), [((1,), (1.0, 0.0)), ((1, 2, 3), (1.0, 0.0)), ((1, 2), ())])
def test_a_wrong_number_of_values_is_no_launch(fake_cuda, pointers, scalars):
    launch = prepare()
    with pytest.raises(LaunchError, match=r"pointers: needed 2, given \d; scalars: needed 2"):
        launch(pointers, scalars, 0)
    assert fake_cuda.counter("launches") == 0


def test_cluster(fake_cuda):
    prepare(LaunchConfig(132, 384, 2))((1, 2), (1, 0), 0)
    assert fake_cuda.launch("attributes") == 1
    assert fake_cuda.launch("attribute_id") == 4
    assert (fake_cuda.launch("cluster"), fake_cuda.launch("cluster_yz")) == (2, 1)
    assert fake_cuda.counter("non_portable") == 0
    prepare(LaunchConfig(160, 384, 16))
    assert fake_cuda.counter("non_portable") == 1


def test_the_configuration_is_laid_out_as_nvidias():
    bindings = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    slot = driver_module._Slot(LaunchConfig(132, 384, 2, 5000), BLOCK)
    slot.config_words[driver_module._CONFIG_STREAM_WORD] = 0x77
    theirs = bindings.CUlaunchConfig()
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ = 132, 1, 1
    theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ = 384, 1, 1
    theirs.sharedMemBytes, theirs.hStream = 5000, 0x77
    attribute = bindings.CUlaunchAttribute()
    attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    value = bindings.CUlaunchAttributeValue()
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = 2, 1, 1
    attribute.value = value
    theirs.attrs, theirs.numAttrs = [attribute], 1

    def read(address: int) -> tuple[bytes, bytes]:
        config = bytearray(ctypes.string_at(address, 52))
        (attributes,) = struct.unpack_from("<Q", config, 40)
        config[28:32], config[40:48] = bytes(4), bytes(8)  # padding and the attributes' address differ
        return bytes(config), ctypes.string_at(attributes, 20)

    assert read(ctypes.cast(slot.config, ctypes.c_void_p).value) == read(theirs.getPtr())


@pytest.mark.parametrize("current", [None, 0x1000])
def test_tensor_maps_are_encoded_once_and_readdressed_on_change(fake_cuda, monkeypatch, current):
    monkeypatch.setenv("FAKE_ARGUMENT_BYTES", "512")
    if current is not None:
        libcuda.call(libcuda.load(), "cuInit", 0)
        libcuda.call(libcuda.load(), "cuCtxPushCurrent_v2", current)
    launch = prepare(block=MAPS)
    assert fake_cuda.counter("encodes") == 0
    launch((0x1000, 0x2000), (1.0,), 0)
    data = fake_cuda.arguments(512)
    first, second = (struct.unpack_from("<16Q", data, offset) for offset in (128, 256))
    assert first[:5] == (0x2000, 9 << 32 | 2, 3 << 32 | 3, 64, 32)
    assert first[8:10] == (1 << 32 | 64, 1 << 32 | 16)
    assert first[12] == 128
    assert second[:6] == (0x1000, 7 << 32 | 3, 1 << 32 | 3, 16, 8, 3)
    assert second[12:14] == (64, 512)
    launch((0x1000, 0x2000), (1.0,), 0)
    assert (fake_cuda.counter("encodes"), fake_cuda.counter("replaces")) == (2, 0)
    launch((0x3000, 0x2000), (1.0,), 0)
    assert (fake_cuda.counter("encodes"), fake_cuda.counter("replaces")) == (2, 1)
    data = fake_cuda.arguments(512)
    assert struct.unpack_from("<Q", data, 128) == (0x2000,)
    assert struct.unpack_from("<Q", data, 256) == (0x3000,)
    assert struct.unpack_from("<2Q", data, 0) == (0x3000, 0x2000)
    if current is not None:
        libcuda.call(libcuda.load(), "cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    assert fake_cuda.counter("depth") == 0


def test_tensor_map_constants_are_the_headers():
    bindings = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    types = bindings.CUtensorMapDataType
    for name, header in (("fp16", "FLOAT16"), ("fp32", "FLOAT32"), ("bf16", "BFLOAT16")):
        value = getattr(types, f"CU_TENSOR_MAP_DATA_TYPE_{header}").value
        assert driver_module._TENSOR_MAP_TYPES[name] == value
    for size, header in ((0, "NONE"), (32, "32B"), (64, "64B"), (128, "128B")):
        value = getattr(bindings.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{header}").value
        assert driver_module._TENSOR_MAP_SWIZZLES[size] == value
    promotion = bindings.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B
    assert promotion.value == driver_module._L2_PROMOTION_256B


def test_tma_refuses_a_misaligned_address(fake_cuda):
    launch = prepare(block=MAPS)
    with pytest.raises(LaunchError, match=r"operand 1 is read by TMA.*16 bytes, given 0x2008"):
        launch((0x1000, 0x2008), (1.0,), 0)
    launch((0x1000, 0x2000), (1.0,), 0)
    assert fake_cuda.counter("launches") == 1


@pytest.mark.parametrize(
    "block",
    [
        ArgumentBlock(bytes(16), (4,), ()),
        ArgumentBlock(bytes(16), (16,), ()),
        ArgumentBlock(bytes(16), (), (14,)),
        ArgumentBlock(bytes(256), (0,), (), (TensorMap(0, 32, 2, "bf16", (8, 8), (16,), (8, 8)),)),
        ArgumentBlock(bytes(256), (0,), (), (TensorMap(0, 192, 2, "bf16", (8, 8), (16,), (8, 8)),)),
        ArgumentBlock(bytes(256), (0,), (), (TensorMap(1, 0, 2, "bf16", (8, 8), (16,), (8, 8)),)),
        ArgumentBlock(bytes(256), (0,), (), (TensorMap(0, 0, 2, "bf16", (8, 8), (), (8, 8)),)),
        ArgumentBlock(bytes(256), (0,), (), (TensorMap(0, 0, 2, "int3", (8, 8), (16,), (8, 8)),)),
    ],
)
def test_a_bad_argument_block_is_refused_early(fake_cuda, block):
    with pytest.raises(LaunchError, match="argument block of"):
        prepare(block=block)


def test_the_device_of_the_launch_not_the_current_one(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_DEVICES", "2")
    launch = prepare(device=1)
    launch((1, 2), (1, 0), 5)  # no context is current in this thread
    assert fake_cuda.launch("context") == 0x1001
    assert fake_cuda.counter("depth") == 0
    fake_cuda.library.cuCtxPushCurrent_v2(ctypes.c_void_p(0x1000))  # as torch has it: device 0
    launch((1, 2), (1, 0), 5)
    assert fake_cuda.launch("context") == 0x1001
    current = ctypes.c_void_p()
    fake_cuda.library.cuCtxGetCurrent(ctypes.byref(current))
    assert current.value == 0x1000
    fake_cuda.library.cuCtxPopCurrent_v2(ctypes.byref(current))


def test_loaded_once(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_DEVICES", "2")
    driver = CudaDriver()
    for device in (0, 0, 1):
        prepare(device=device, driver=driver)
    assert fake_cuda.counter("loads") == 1
    prepare(driver=driver, code=ObjectCode(b"\x7fELF other", CODE.target, "gemm", CODE.compiler))
    assert fake_cuda.counter("loads") == 2
    assert fake_cuda.counter("depth") == 0


def test_loads_during_a_capture(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CAPTURING", "1")
    prepare()((1, 2), (1, 0), 0)
    assert fake_cuda.counter("launches") == 1
    assert fake_cuda.counter("capture_mode") == 0  # as it was before


def test_capture_mode_is_restored_after_a_failure(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CAPTURING", "1")
    with pytest.raises(LaunchError):
        prepare(code=ObjectCode(b"junk", CODE.target, "gemm", CODE.compiler))
    assert fake_cuda.counter("capture_mode") == 0
    assert fake_cuda.counter("depth") == 0


@pytest.mark.parametrize(
    ("config", "needed", "available"),
    [
        (LaunchConfig(7, 2048), "2048", "1 to 1024"),
        (LaunchConfig(0, 128), "0", "1 to 2147483647"),
        (LaunchConfig(2147483648, 128), "2147483648", "1 to 2147483647"),
        (LaunchConfig(7, 128, 2), "a multiple of the cluster's 2", "7"),
    ],
)
def test_limits_are_checked_before_the_launch(fake_cuda, config, needed, available):
    with pytest.raises(LaunchError) as caught:
        prepare(config)
    assert f"needed {needed}, available {available}" in str(caught.value)
    assert "kernel gemm on cuda:0" in str(caught.value)


def test_too_much_shared_memory(fake_cuda, monkeypatch):
    """Fault G37: 147456 bytes where a block may have 101376."""
    monkeypatch.setenv("FAKE_SHARED", "101376")
    with pytest.raises(LaunchError) as caught:
        prepare(LaunchConfig(7, 128, 1, 147456))
    assert "shared memory of a block: needed 148480 bytes, available 101376 bytes" in str(caught.value)
    assert fake_cuda.counter("attribute_sets") == 0
    prepare(LaunchConfig(7, 128, 1, 4096))((1, 2), (1, 0), 0)  # the device is still usable


def test_clusters_where_there_are_none(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CAPABILITY", "80")
    with pytest.raises(LaunchError, match="the device has no clusters"):
        prepare(LaunchConfig(8, 128, 2))


def test_the_shared_memory_limit_is_only_ever_raised(fake_cuda):
    driver = CudaDriver()
    prepare(LaunchConfig(7, 128, 1, 40000), driver=driver)
    assert fake_cuda.counter("attribute_sets") == 0  # below 48 KB nothing is set
    prepare(LaunchConfig(7, 128, 1, 200000), driver=driver)
    prepare(LaunchConfig(7, 128, 1, 100000), driver=driver)
    assert fake_cuda.counter("dynamic_shared") == 200000
    assert fake_cuda.counter("attribute_sets") == 1


def test_code_of_another_arch(fake_cuda):
    with pytest.raises(LaunchError) as caught:
        prepare(code=ObjectCode(b"code", CODE.target, "gemm", CODE.compiler))
    text = str(caught.value)
    assert "CUDA_ERROR_NO_BINARY_FOR_GPU (209): words of the driver" in text
    assert "compiled for sm_90a by nvrtc 13.0.88" in text


def test_a_missing_symbol(fake_cuda):
    with pytest.raises(LaunchError, match="kernel missing on cuda:0 cannot be loaded: cuLibraryGetKernel"):
        prepare(code=ObjectCode(CODE.code, CODE.target, "missing", CODE.compiler))


def test_a_compiler_newer_than_the_driver(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_VERSION", "12040")
    with pytest.raises(LaunchError) as caught:
        prepare()
    text = str(caught.value)
    assert "nvrtc 13.0.88" in text
    assert "CUDA 12.4 at most" in text
    assert "portagemm[cuda12]" in text
    prepare(code=ObjectCode(CODE.code, CODE.target, "gemm", "nvrtc 12.9.86"))  # a newer minor is fine


def test_a_failing_launch_says_what_and_where(fake_cuda, monkeypatch):
    launch = prepare(LaunchConfig(100, 256, 2, 512))
    monkeypatch.setenv("FAKE_LAUNCH_ERROR", "700")
    with pytest.raises(LaunchError) as caught:
        launch((1, 2), (1, 0), 0)
    text = str(caught.value)
    assert "kernel gemm on cuda:0 cannot be launched: CUDA_ERROR_ILLEGAL_ADDRESS (700)" in text
    assert "grid 100, block 256, cluster 2, 512 bytes shared" in text
    monkeypatch.delenv("FAKE_LAUNCH_ERROR")
    launch((1, 2), (1, 0), 0)


def test_threads_do_not_share_an_argument_block(fake_cuda, monkeypatch):
    """Every launch sees its own two pointers, which belong together, and never a mixture."""
    driver = CudaDriver()
    launch = prepare(driver=driver)
    seen: list[bool] = []

    def record(self, slot, pointers):
        a, b, stream = slot.words[1], slot.words[3], slot.config_words[4]
        time.sleep(0)  # let another thread in
        seen.append((a, b, stream) == (slot.words[1], slot.words[3], slot.config_words[4]))
        seen.append(b == a + 1 and stream == a)
        return 0

    monkeypatch.setattr(driver_module.CudaLaunch, "_launch_elsewhere", record)

    def work(base: int) -> None:
        for i in range(300):
            launch((base + i, base + i + 1), (1, 0), base + i)

    threads = [threading.Thread(target=work, args=(k << 32,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4800
    assert len(launch._free) <= 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_after_use_gets_one_clear_error(fake_cuda):
    """Fault G40, second half: the child cannot use CUDA and is told why, at prepare and at launch."""
    driver = CudaDriver()
    launch = prepare(driver=driver)
    launch((1, 2), (1, 0), 0)
    child = os.fork()
    if child == 0:
        told = 0
        for attempt in (lambda: launch((1, 2), (1, 0), 0), lambda: prepare(driver=driver)):
            try:
                attempt()
            except LaunchError as error:
                told += "spawn" in str(error)
        os._exit(0 if told == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    launch((1, 2), (1, 0), 0)  # the parent goes on


def test_current_stream(fake_cuda, monkeypatch):
    import torch

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 70 + index, raising=False)
    assert CudaDriver().current_stream(2) == 72


def test_current_stream_by_the_public_api(fake_cuda, monkeypatch):
    import torch

    class Stream:
        def __init__(self, index: int) -> None:
            self.cuda_stream = 80 + index

    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    assert CudaDriver().current_stream(1) == 81
