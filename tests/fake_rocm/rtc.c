/* libhiprtc.so without ROCm, for tests: it sits under the unmodified hip-python.
 *
 * FAKE_HIPRTC_CLANG names a clang with the AMDGPU target, which then really compiles: with hiprtc's own additions
 * (__HIPCC_RTC__, C++14 unless the options say otherwise, FAKE_HIPRTC_PRELUDE before the source) and all options as they
 * came. Without it the "code object" is the options, one a line, then the source, and a source with #error fails. Calls are written to
 * FAKE_HIP_LOG. -DMISSING_SYMBOL leaves out hiprtcVersion.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { success = 0, out_of_memory = 1, invalid_input = 3, compilation_failed = 6, internal_error = 11 };

struct program {
    char* source;
    char* code;
    size_t size;
    char* log;
};

static void record(const char* line) {
    const char* path = getenv("FAKE_HIP_LOG");
    FILE* file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s\n", line);
    fclose(file);
}

#ifndef MISSING_SYMBOL
int hiprtcVersion(int* major, int* minor) {
    *major = 7;
    *minor = 0;
    return success;
}
#endif

int hiprtcCreateProgram(void** out, const char* source, const char* name, int headers, const char** texts,
                        const char** names) {
    (void)texts, (void)names;
    if (headers) return invalid_input;
    record(name);
    struct program* p = calloc(1, sizeof *p);
    p->source = strdup(source);
    *out = p;
    return success;
}

/* A file's bytes, with a zero behind them; NULL where there is none. */
static char* contents(const char* path, size_t* size) {
    FILE* file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char* bytes = calloc(1, *size + 1);
    *size = fread(bytes, 1, *size, file);
    fclose(file);
    return bytes;
}

static int compile(struct program* p, int count, const char** options, const char* clang) {
    char folder[] = "/tmp/fake-hiprtc-XXXXXX", source[64], code[64], log[64];
    if (!mkdtemp(folder)) return internal_error;
    snprintf(source, sizeof source, "%s/program.hip", folder);
    snprintf(code, sizeof code, "%s/program.co", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    FILE* file = fopen(source, "w");
    if (!file) return internal_error;
    fputs(p->source, file);
    fclose(file);

    const char* own[] = {clang,       "-x",         "hip",         "--cuda-device-only", "--no-gpu-bundle-output",
                         "-nogpuinc", "-nogpulib",  "-std=c++14",  "-D__HIPCC_RTC__",    "-Wno-unused-command-line-argument",
                         "-fuse-cuid=none"};
    const int own_count = sizeof own / sizeof *own;
    const char* prelude = getenv("FAKE_HIPRTC_PRELUDE");
    const char** arguments = calloc(own_count + count + 8, sizeof *arguments);
    int at = 0;
    for (int i = 0; i < own_count; i++) arguments[at++] = own[i];
    if (prelude) arguments[at++] = "-include", arguments[at++] = prelude;
    for (int i = 0; i < count; i++) arguments[at++] = options[i];
    arguments[at++] = source, arguments[at++] = "-o", arguments[at++] = code;

    pid_t child = fork();
    if (child == 0) {
        int out = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(out, 1), dup2(out, 2);
        execvp(clang, (char* const*)arguments);
        _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    free(arguments);
    size_t ignored;
    p->log = contents(log, &ignored);
    p->code = contents(code, &p->size);
    unlink(source), unlink(code), unlink(log), rmdir(folder);
    return status == 0 && p->code ? success : compilation_failed;
}

int hiprtcCompileProgram(void* program, int count, const char** options) {
    struct program* p = program;
    const char* clang = getenv("FAKE_HIPRTC_CLANG");
    if (clang) {
        char line[64];
        snprintf(line, sizeof line, "hiprtcCompileProgram %d options", count);
        record(line);
        return compile(p, count, options, clang);
    }
    if (strstr(p->source, "#error")) {
        p->log = strdup("kernel.hip:1:2: error: as asked");
        return compilation_failed;
    }
    size_t size = strlen(p->source) + 1;
    for (int i = 0; i < count; i++) size += strlen(options[i]) + 1;
    p->code = calloc(1, size);
    for (int i = 0; i < count; i++) strcat(strcat(p->code, options[i]), "\n");
    strcat(p->code, p->source);
    p->size = strlen(p->code);
    return success;
}

int hiprtcGetProgramLogSize(void* program, size_t* size) {
    const char* log = ((struct program*)program)->log;
    *size = log && *log ? strlen(log) + 1 : 0;
    return success;
}

int hiprtcGetProgramLog(void* program, char* log) {
    strcpy(log, ((struct program*)program)->log);
    return success;
}

int hiprtcGetCodeSize(void* program, size_t* size) {
    *size = ((struct program*)program)->size;
    return success;
}

int hiprtcGetCode(void* program, char* code) {
    memcpy(code, ((struct program*)program)->code, ((struct program*)program)->size);
    return success;
}

int hiprtcDestroyProgram(void** program) {
    struct program* p = *program;
    record("destroyed");
    free(p->source), free(p->code), free(p->log), free(p);
    *program = NULL;
    return success;
}
