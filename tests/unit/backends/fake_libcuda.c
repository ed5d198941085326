// A CUDA driver without a GPU, for tests: the entry points the backend uses, with the real ABI, recording what
// arrives. The environment sets it up (a child process inherits that), fake_* functions read it out.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;

typedef struct {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct {
            unsigned x, y, z;
        } cluster;
    } value;
} CUlaunchAttribute;

typedef struct {
    unsigned grid[3], block[3], shared;
    void* stream;
    CUlaunchAttribute* attrs;
    unsigned attr_count;
} CUlaunchConfig;

enum { max_devices = 8, argument_bytes = 512 };

typedef struct {
    CUlaunchConfig config;
    CUlaunchAttribute attribute;
    unsigned char arguments[argument_bytes];
    uint64_t argument_address;
    void *kernel, *context;
    int count;
} launch_record;

static launch_record last;
static pid_t initialised_by = 0;
static int loads = 0, inits = 0, encodes = 0, replaces = 0, retained = 0, attribute_sets = 0;
static int dynamic_shared[max_devices], non_portable[max_devices];
static __thread void* contexts[16];
static __thread int depth = 0;
static __thread int capture_mode = 0;

static int number(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int ready(void) { return initialised_by == getpid(); }
static void* context_of(int device) { return (void*)(intptr_t)(0x1000 + device); }
static void* current(void) { return depth ? contexts[depth - 1] : NULL; }

// CUDA_VISIBLE_DEVICES with indices and UUID prefixes, as the driver reads it: stops at the first bad entry.
static int visible(int* order) {
    int devices = number("FAKE_DEVICES", 1), count = 0;
    const char* mask = getenv("CUDA_VISIBLE_DEVICES");
    if (!mask) {
        for (; count < devices; ++count) order[count] = count;
        return count;
    }
    char text[256];
    snprintf(text, sizeof text, "%s", mask);
    for (char* entry = strtok(text, ","); entry; entry = strtok(NULL, ",")) {
        int device = strncmp(entry, "GPU-", 4) == 0 ? entry[4] - '0' : atoi(entry);
        if (device < 0 || device >= devices) break;
        order[count++] = device;
    }
    return count;
}

CUresult cuInit(unsigned flags) {
    (void)flags;
    int order[max_devices];
    if (initialised_by && !ready()) return 3;
    int error = number("FAKE_INIT_ERROR", 0);
    if (error) return error;
    if (visible(order) == 0) return 100;
    ++inits;
    initialised_by = getpid();
    return 0;
}

CUresult cuDriverGetVersion(int* version) {
    *version = number("FAKE_VERSION", 13000);
    return 0;
}

CUresult cuGetErrorName(int error, const char** text) {
    *text = error == 3     ? "CUDA_ERROR_NOT_INITIALIZED"
            : error == 100 ? "CUDA_ERROR_NO_DEVICE"
            : error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
            : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : error == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
            : error == 900 ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                           : NULL;
    return *text ? 0 : 1;
}

CUresult cuGetErrorString(int error, const char** text) {
    *text = error ? "words of the driver" : "no error";
    return 0;
}

CUresult cuDeviceGetCount(int* count) {
    int order[max_devices];
    if (!ready()) return 3;
    *count = visible(order);
    return 0;
}

CUresult cuDeviceGet(int* device, int ordinal) {
    int order[max_devices];
    if (!ready()) return 3;
    if (ordinal < 0 || ordinal >= visible(order)) return 101;
    *device = ordinal;
    return 0;
}

CUresult cuDeviceGetName(char* name, int length, int device) {
    int order[max_devices];
    visible(order);
    snprintf(name, length, "Fake GPU %d%s", order[device], getenv("FAKE_MIG") ? " MIG 1g.10gb" : "");
    return 0;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, int device) {
    (void)device;
    int capability = number("FAKE_CAPABILITY", 90);
    switch (attribute) {
        case 1:
            *value = 1024;
            break;
        case 5:
            *value = 2147483647;
            break;
        case 16:
            *value = 132;
            break;
        case 32:
            *value = 1;
            break;
        case 36:
            *value = 3201000;
            break;
        case 37:
            *value = 6144;
            break;
        case 38:
            *value = 62914560;
            break;
        case 75:
            *value = capability / 10;
            break;
        case 76:
            *value = capability % 10;
            break;
        case 97:
            *value = number("FAKE_SHARED", 232448);
            break;
        case 120:
            *value = capability >= 90;
            break;
        default:
            *value = 0;
    }
    return 0;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, int device) {
    (void)device;
    *bytes = (size_t)141 << 30;
    return 0;
}

CUresult cuDevicePrimaryCtxRetain(void** context, int device) {
    if (!ready()) return 3;
    ++retained;
    *context = context_of(device);
    return 0;
}

CUresult cuCtxGetCurrent(void** context) {
    if (!ready()) return 3;
    *context = current();
    return 0;
}

CUresult cuCtxGetDevice(int* device) {
    if (!ready()) return 3;
    if (!current()) return 201;
    *device = (int)(intptr_t)current() - 0x1000;
    return 0;
}

CUresult cuCtxPushCurrent_v2(void* context) {
    if (!ready()) return 3;
    contexts[depth++] = context;
    return 0;
}

CUresult cuCtxPopCurrent_v2(void** context) {
    if (!depth) return 201;
    *context = contexts[--depth];
    return 0;
}

CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
    int previous = capture_mode;
    capture_mode = *mode;
    *mode = previous;
    return 0;
}

CUresult cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned c, void* d, void* e,
                           unsigned f) {
    if (!ready()) return 3;
    if (getenv("FAKE_CAPTURING") && capture_mode != 2) return 900;
    if (a || b || c || d || e || f) return 1;
    if (memcmp(code, "\177ELF", 4) != 0) return 209;
    ++loads;
    *library = (void*)(intptr_t)(0x2000 + loads);
    return 0;
}

CUresult cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    if (strcmp(name, "missing") == 0) return 500;
    *kernel = (void*)((intptr_t)library + 0x1000);
    return 0;
}

CUresult cuKernelGetFunction(void** function, void* kernel) {
    if (!current()) return 201;
    *function = (void*)((intptr_t)kernel + 0x1000);
    return 0;
}

CUresult cuFuncLoad(void* function) {
    (void)function;
    return getenv("FAKE_CAPTURING") && capture_mode != 2 ? 900 : 0;
}

CUresult cuKernelGetAttribute(int* value, int attribute, void* kernel, int device) {
    (void)kernel, (void)device;
    *value = attribute == 0 ? number("FAKE_KERNEL_THREADS", 1024) : attribute == 1 ? 1024 : 0;
    return 0;
}

CUresult cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
    (void)kernel;
    ++attribute_sets;
    if (attribute == 8) dynamic_shared[device] = value;
    if (attribute == 14) non_portable[device] = value;
    return attribute == 8 || attribute == 14 ? 0 : 1;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, void* kernel, void** parameters, void** extra) {
    if (!ready()) return 3;
    if (!current()) return 201;
    if (extra) return 1;
    int error = number("FAKE_LAUNCH_ERROR", 0);
    if (error) return error;
    last.config = *config;
    if (config->attr_count) last.attribute = config->attrs[0];
    memcpy(last.arguments, parameters[0], number("FAKE_ARGUMENT_BYTES", 64));
    last.argument_address = (uint64_t)parameters[0];
    last.kernel = kernel;
    last.context = current();
    ++last.count;
    return 0;
}

CUresult cuTensorMapEncodeTiled(void* map, int dtype, unsigned rank, void* address, const uint64_t* dims,
                                const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                                int swizzle, int promotion, int fill) {
    if (!current()) return 201;
    if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || interleave || fill) return 1;
    uint64_t* out = map;
    memset(out, 0, 128);
    out[0] = (uint64_t)address;
    out[1] = (uint64_t)dtype << 32 | rank;
    out[2] = (uint64_t)swizzle << 32 | promotion;
    for (unsigned i = 0; i < rank; ++i) {
        out[3 + i] = dims[i];
        out[8 + i] = (uint64_t)steps[i] << 32 | box[i];
        if (i + 1 < rank) out[12 + i] = strides[i];
    }
    ++encodes;
    return 0;
}

CUresult cuTensorMapReplaceAddress(void* map, void* address) {
    if (!current()) return 201;
    if ((uintptr_t)map % 64 || (uintptr_t)address % 16) return 1;
    ((uint64_t*)map)[0] = (uint64_t)address;
    ++replaces;
    return 0;
}

// Read out by the tests.
int fake_counter(const char* name) {
    if (strcmp(name, "loads") == 0) return loads;
    if (strcmp(name, "inits") == 0) return inits;
    if (strcmp(name, "encodes") == 0) return encodes;
    if (strcmp(name, "replaces") == 0) return replaces;
    if (strcmp(name, "retained") == 0) return retained;
    if (strcmp(name, "attribute_sets") == 0) return attribute_sets;
    if (strcmp(name, "dynamic_shared") == 0) return dynamic_shared[0];
    if (strcmp(name, "non_portable") == 0) return non_portable[0];
    if (strcmp(name, "launches") == 0) return last.count;
    if (strcmp(name, "depth") == 0) return depth;
    if (strcmp(name, "capture_mode") == 0) return capture_mode;
    return -1;
}

uint64_t fake_launch(const char* name) {
    if (strcmp(name, "grid") == 0) return last.config.grid[0];
    if (strcmp(name, "grid_yz") == 0) return last.config.grid[1] * last.config.grid[2];
    if (strcmp(name, "block") == 0) return last.config.block[0];
    if (strcmp(name, "block_yz") == 0) return last.config.block[1] * last.config.block[2];
    if (strcmp(name, "shared") == 0) return last.config.shared;
    if (strcmp(name, "stream") == 0) return (uint64_t)last.config.stream;
    if (strcmp(name, "attributes") == 0) return last.config.attr_count;
    if (strcmp(name, "attribute_id") == 0) return last.attribute.id;
    if (strcmp(name, "cluster") == 0) return last.attribute.value.cluster.x;
    if (strcmp(name, "cluster_yz") == 0) return last.attribute.value.cluster.y * last.attribute.value.cluster.z;
    if (strcmp(name, "context") == 0) return (uint64_t)last.context;
    if (strcmp(name, "argument_address") == 0) return last.argument_address;
    return (uint64_t)-1;
}

const unsigned char* fake_arguments(void) { return last.arguments; }
