// Stands in for the driver's library in tests of the doctor's child. FAKE says how it behaves.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char* what) {
    const char* mode = getenv("FAKE");
    return mode && strcmp(mode, what) == 0;
}

static int code(const char* name) {
    const char* text = getenv(name);
    return text ? atoi(text) : 0;
}

__attribute__((constructor)) static void load(void) {
    if (is("crash-load")) raise(SIGSEGV);
    if (is("hang-load")) sleep(600);
}

#ifndef MISSING
int cuInit(unsigned flags) {
    (void)flags;
    if (is("crash-init")) raise(SIGSEGV);
    if (is("hang-init")) sleep(600);
    if (is("exit-init")) _exit(7);
    return code("FAKE_INIT");
}
#endif

int cuDriverGetVersion(int* version) {
    *version = 12080;
    return 0;
}

int cuDeviceGetCount(int* count) {
    if (is("crash-count")) raise(SIGABRT);
    *count = is("none") ? 0 : 2;
    return code("FAKE_COUNT");
}

int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char* name, int length, int device) {
    (void)device;
    strncpy(name, "Fake GPU", (size_t)length);
    return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    (void)device;
    *bytes = (size_t)80 << 30;
    return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : 0;
    return 0;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    memset(uuid, 0xa0 + device, 16);
    return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = 0;
    if (is("crash-context")) raise(SIGSEGV);
    return device == 1 ? code("FAKE_CONTEXT") : 0;
}
