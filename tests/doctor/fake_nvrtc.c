// Stands in for NVRTC in tests of the doctor's child. FAKE says how it behaves.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char* what) {
    const char* mode = getenv("FAKE");
    return mode && strcmp(mode, what) == 0;
}

#ifndef MISSING
int nvrtcVersion(int* major, int* minor) {
    *major = is("old") ? 11 : 12;
    *minor = 8;
    return is("error") ? 10 : 0;
}
#endif

int nvrtcGetNumSupportedArchs(int* count) {
    *count = 2;
    return 0;
}

int nvrtcGetSupportedArchs(int* archs) {
    archs[0] = 80;
    archs[1] = 90;
    return 0;
}

int nvrtcCreateProgram(void** program, const char* source, const char* name, int count, void* headers, void* names) {
    (void)source, (void)name, (void)count, (void)headers, (void)names;
    *program = program;
    return 0;
}

int nvrtcCompileProgram(void* program, int count, void* options) {
    (void)program, (void)count, (void)options;
    if (is("crash")) raise(SIGSEGV);
    if (is("hang")) sleep(600);
    return is("no-builtins") ? 7 : 0;
}

int nvrtcGetProgramLogSize(void* program, size_t* size) {
    (void)program;
    *size = 64;
    return 0;
}

int nvrtcGetProgramLog(void* program, char* log) {
    (void)program;
    strcpy(log, "nvrtc: error: failed to open libnvrtc-builtins.so.12.8.");
    return 0;
}
