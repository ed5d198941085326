/* A HIP runtime and a HIPRTC without hardware, for the tests of the ROCm backend: what arrives is written, one line a
 * call, to the file that FAKE_HIP_LOG names. FAKE_HIP_DEVICES devices exist (default 2); FAKE_HIP_FAIL=call:error makes
 * a call fail. -DMISSING_SYMBOL leaves out hipRuntimeGetVersion and hiprtcVersion. Offsets of hipDeviceProp_t come from
 * the environment, because the struct differs between releases.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread int current = 0;
static int modules = 0;

static int number(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static void record(const char* line) {
    const char* path = getenv("FAKE_HIP_LOG");
    FILE* file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s\n", line);
    fclose(file);
}

static int failure(const char* call) {
    const char* text = getenv("FAKE_HIP_FAIL");
    size_t length = strlen(call);
    return text && !strncmp(text, call, length) && text[length] == ':' ? atoi(text + length + 1) : 0;
}

#define FAIL_IF_ASKED(call)           \
    do {                              \
        int error = failure(call);    \
        if (error) return error;      \
    } while (0)

#ifndef MISSING_SYMBOL
int hipRuntimeGetVersion(int* version) {
    *version = 70051831;
    return 0;
}
int hiprtcVersion(int* major, int* minor) {
    *major = 7;
    *minor = 0;
    return 0;
}
#endif

int hipDriverGetVersion(int* version) {
    *version = 70051831;
    return 0;
}

int hipGetDeviceCount(int* count) {
    record("hipGetDeviceCount");
    *count = number("FAKE_HIP_DEVICES", 2);
    return *count ? 0 : 100; /* hipErrorNoDevice */
}

int hipGetDevice(int* device) {
    *device = current;
    return 0;
}

int hipSetDevice(int device) {
    if (device < 0 || device >= number("FAKE_HIP_DEVICES", 2)) return 101; /* hipErrorInvalidDevice */
    char line[64];
    snprintf(line, sizeof line, "hipSetDevice %d", device);
    record(line);
    current = device;
    return 0;
}

static void put(void* properties, const char* field, int value) {
    char name[64];
    snprintf(name, sizeof name, "FAKE_HIP_OFFSET_%s", field);
    int offset = number(name, -1);
    if (offset >= 0) memcpy((char*)properties + offset, &value, sizeof value);
}

int hipGetDevicePropertiesR0600(void* properties, int device) {
    if (device < 0 || device >= number("FAKE_HIP_DEVICES", 2)) return 101;
    strcpy((char*)properties, "AMD Instinct MI250X");
    const char* arch = getenv("FAKE_HIP_ARCH");
    int offset = number("FAKE_HIP_OFFSET_gcnArchName", -1);
    if (offset >= 0) strcpy((char*)properties + offset, arch ? arch : "gfx90a:sramecc+:xnack-");
    put(properties, "maxThreadsPerBlock", 1024);
    put(properties, "multiProcessorCount", 110);
    put(properties, "sharedMemPerBlock", 65536);
    return 0;
}

int hipModuleLoadData(void** module, const void* image) {
    FAIL_IF_ASKED("hipModuleLoadData");
    char line[128];
    snprintf(line, sizeof line, "hipModuleLoadData device %d %.16s", current, (const char*)image);
    record(line);
    *module = (void*)(intptr_t)(0x1000 + ++modules);
    return 0;
}

int hipModuleGetFunction(void** function, void* module, const char* name) {
    FAIL_IF_ASKED("hipModuleGetFunction");
    char line[128];
    snprintf(line, sizeof line, "hipModuleGetFunction %s", name);
    record(line);
    *function = (void*)((intptr_t)module + 0x10000);
    return 0;
}

int hipFuncGetAttribute(int* value, int attribute, void* function) {
    (void)function;
    *value = attribute == 1 ? number("FAKE_HIP_STATIC_LDS", 0) : number("FAKE_HIP_FUNCTION_THREADS", 1024);
    return 0;
}

int hipThreadExchangeStreamCaptureMode(int* mode) {
    char line[64];
    snprintf(line, sizeof line, "captureMode %d", *mode);
    record(line);
    *mode = *mode == 2 ? 0 : 2;
    return 0;
}

int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** parameters, void** extra) {
    FAIL_IF_ASKED("hipModuleLaunchKernel");
    if (parameters || !extra || (intptr_t)extra[0] != 1 || (intptr_t)extra[2] != 2 || (intptr_t)extra[4] != 3) return 1;
    if (!getenv("FAKE_HIP_LOG")) return 0;
    const unsigned char* bytes = extra[1];
    size_t size = *(size_t*)extra[3];
    char* line = malloc(256 + 2 * size);
    int at = sprintf(line, "launch %p grid %u %u %u block %u %u %u shared %u stream %p device %d arguments ", function, gx,
                     gy, gz, bx, by, bz, shared, stream, current);
    for (size_t i = 0; i < size; i++) at += sprintf(line + at, "%02x", bytes[i]);
    record(line);
    free(line);
    return 0;
}

/* HIPRTC: the "code object" is the options, one a line, then the source. */
struct program {
    char* source;
    char* code;
    size_t size;
    const char* log;
};

int hiprtcCreateProgram(void** out, const char* source, const char* name, int headers, const char** texts,
                        const char** names) {
    (void)texts, (void)names;
    if (headers) return 3;
    record(name);
    struct program* p = calloc(1, sizeof *p);
    p->source = strdup(source);
    *out = p;
    return 0;
}

int hiprtcCompileProgram(void* program, int count, const char** options) {
    struct program* p = program;
    if (strstr(p->source, "#error")) {
        p->log = "kernel.hip:1:2: error: as asked";
        return 6; /* HIPRTC_ERROR_COMPILATION */
    }
    size_t size = strlen(p->source) + 1;
    for (int i = 0; i < count; i++) size += strlen(options[i]) + 1;
    p->code = calloc(1, size);
    for (int i = 0; i < count; i++) strcat(strcat(p->code, options[i]), "\n");
    strcat(p->code, p->source);
    p->size = strlen(p->code);
    return 0;
}

int hiprtcGetProgramLogSize(void* program, size_t* size) {
    const char* log = ((struct program*)program)->log;
    *size = log ? strlen(log) + 1 : 0;
    return 0;
}
int hiprtcGetProgramLog(void* program, char* log) {
    strcpy(log, ((struct program*)program)->log);
    return 0;
}
int hiprtcGetCodeSize(void* program, size_t* size) {
    *size = ((struct program*)program)->size;
    return 0;
}
int hiprtcGetCode(void* program, char* code) {
    memcpy(code, ((struct program*)program)->code, ((struct program*)program)->size);
    return 0;
}
int hiprtcDestroyProgram(void** program) {
    record("destroyed");
    free(*program);
    *program = NULL;
    return 0;
}
