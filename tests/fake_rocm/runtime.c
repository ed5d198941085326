/* libamdhip64.so without hardware, for tests: it sits under the unmodified hip-python.
 *
 * What arrives is written, one line a call, to the file FAKE_HIP_LOG names. Devices: FAKE_HIP_ARCH lists one target a
 * device ("gfx90a:sramecc+:xnack-,gfx1100"); FAKE_HIP_DEVICES their number (default: as many, at least 2).
 * FAKE_HIP_FAIL=call:error[,call:error] makes calls fail. Code objects are checked as HIP does (ELF, target, features,
 * symbol) unless FAKE_HIP_IMAGES=any. Offsets of hipDeviceProp_t come from the environment (FAKE_HIP_OFFSET_field).
 * The memory of a code object must stay as it was. A launch calls the function given to fake_hip_on_launch; without one
 * it does nothing. With one, streams and modules are checked too. -DMISSING_SYMBOL leaves out hipRuntimeGetVersion.
 */
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* hipError_t */
enum {
    success = 0,
    invalid_value = 1,
    no_device = 100,
    invalid_device = 101,
    invalid_image = 200,
    no_binary_for_gpu = 209,
    invalid_handle = 400,
    not_found = 500,
    launch_out_of_resources = 701,
};

/* Returns a hipError_t. */
typedef int (*on_launch)(const void* image, size_t image_bytes, const char* kernel, unsigned grid, unsigned block,
                         unsigned dynamic_lds, const void* arguments, size_t argument_bytes, void* stream, int device);

struct module {
    int device, loaded;
    size_t bytes;
    unsigned char* image;
    const void* given;
};
struct function {
    struct module* module;
    char* name;
};
struct stream {
    int device, alive;
};

static __thread int current = 0, last_error = 0;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static on_launch launched = NULL;
static struct stream streams[64];
static int stream_count = 0;

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

static int asked_failure(const char* call) {
    const char* text = getenv("FAKE_HIP_FAIL");
    size_t length = strlen(call);
    for (; text; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL)
        if (!strncmp(text, call, length) && text[length] == ':') return atoi(text + length + 1);
    return 0;
}

/* As in HIP, the calling thread's last error stays until hipGetLastError takes it. */
static int done(int error) {
    if (error) last_error = error;
    return error;
}

#define FAIL_IF_ASKED(call)                   \
    do {                                      \
        int asked_ = asked_failure(call);     \
        if (asked_) return done(asked_);      \
    } while (0)

static const char default_arch[] = "gfx90a:sramecc+:xnack-";

/* The device's target, features included: the list's entry, its last for devices beyond. */
static void arch_of(int device, char out[64]) {
    const char* text = getenv("FAKE_HIP_ARCH");
    if (!text) text = default_arch;
    const char* next;
    while (device-- > 0 && (next = strchr(text, ','))) text = next + 1;
    size_t length = strcspn(text, ",");
    memcpy(out, text, length);
    out[length] = 0;
}

static int device_count(void) {
    const char* text = getenv("FAKE_HIP_ARCH");
    int listed = 1;
    for (; text && (text = strchr(text, ',')); text++) listed++;
    return number("FAKE_HIP_DEVICES", listed > 2 ? listed : 2);
}

#ifndef MISSING_SYMBOL
int hipRuntimeGetVersion(int* version) {
    *version = 70051831;
    return success;
}
#endif

int hipDriverGetVersion(int* version) {
    *version = 70051831;
    return success;
}

int hipGetLastError(void) {
    int error = last_error;
    last_error = success;
    return error;
}

int hipPeekAtLastError(void) { return last_error; }

int hipGetDeviceCount(int* count) {
    FAIL_IF_ASKED("hipGetDeviceCount");
    record("hipGetDeviceCount");
    *count = device_count();
    return done(*count ? success : no_device);
}

int hipGetDevice(int* device) {
    FAIL_IF_ASKED("hipGetDevice");
    *device = current;
    return success;
}

int hipSetDevice(int device) {
    FAIL_IF_ASKED("hipSetDevice");
    if (device < 0 || device >= device_count()) return done(invalid_device);
    char line[64];
    snprintf(line, sizeof line, "hipSetDevice %d", device);
    record(line);
    current = device;
    return success;
}

static void put(void* properties, const char* field, uint64_t value, size_t bytes) {
    char name[64];
    snprintf(name, sizeof name, "FAKE_HIP_OFFSET_%s", field);
    int offset = number(name, -1);
    if (offset >= 0) memcpy((char*)properties + offset, &value, bytes);
}

int hipGetDevicePropertiesR0600(void* properties, int device) {
    FAIL_IF_ASKED("hipGetDeviceProperties");
    if (device < 0 || device >= device_count()) return done(invalid_device);
    char arch[64];
    arch_of(device, arch);
    strcpy((char*)properties, strncmp(arch, "gfx90a", 6) ? "AMD Radeon Graphics" : "AMD Instinct MI250X");
    int offset = number("FAKE_HIP_OFFSET_gcnArchName", -1);
    if (offset >= 0) strcpy((char*)properties + offset, arch);
    put(properties, "maxThreadsPerBlock", 1024, 4);
    put(properties, "multiProcessorCount", 110, 4);
    put(properties, "l2CacheSize", 8 << 20, 4);
    put(properties, "memoryClockRate", 1600000, 4); /* kHz */
    put(properties, "memoryBusWidth", 4096, 4);
    put(properties, "totalGlobalMem", 64ull << 30, 8);
    put(properties, "sharedMemPerBlock", number("FAKE_HIP_LDS", 65536), 8);
    return success;
}

/* --- streams ----------------------------------------------------------------------------------------------- */

int hipStreamCreate(void** stream) {
    FAIL_IF_ASKED("hipStreamCreate");
    pthread_mutex_lock(&lock);
    struct stream* s = &streams[stream_count++ % 64];
    pthread_mutex_unlock(&lock);
    s->device = current;
    s->alive = 1;
    *stream = s;
    return success;
}

int hipStreamDestroy(void* stream) {
    ((struct stream*)stream)->alive = 0;
    return success;
}

int hipStreamSynchronize(void* stream) { return (void)stream, success; }
int hipDeviceSynchronize(void) { return success; }

static int stream_error(void* stream) {
    if (!stream) return success;
    for (int i = 0; i < 64; i++)
        if (stream == &streams[i] && streams[i].alive && streams[i].device == current) return success;
    return invalid_handle;
}

int hipThreadExchangeStreamCaptureMode(int* mode) {
    static __thread int now = 0; /* hipStreamCaptureModeGlobal */
    char line[64];
    snprintf(line, sizeof line, "captureMode %d", *mode);
    record(line);
    int before = now;
    now = *mode;
    *mode = before;
    return success;
}

/* --- code objects ------------------------------------------------------------------------------------------- */

static int any_image(void) {
    const char* text = getenv("FAKE_HIP_IMAGES");
    return text && !strcmp(text, "any");
}

/* Value of EF_AMDGPU_MACH, LLVM's "User Guide for AMDGPU Backend". */
static unsigned mach_of(const char* arch) {
    static const struct {
        const char* name;
        unsigned mach;
    } known[] = {{"gfx906", 0x2f},  {"gfx908", 0x30},  {"gfx90a", 0x3f},  {"gfx942", 0x4c},  {"gfx950", 0x4f},
                 {"gfx1030", 0x36}, {"gfx1100", 0x41}, {"gfx1101", 0x46}, {"gfx1200", 0x48}, {"gfx1201", 0x4e}};
    size_t length = strcspn(arch, ":");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == length && !strncmp(known[i].name, arch, length)) return known[i].mach;
    return 0;
}

/* A feature field of e_flags (0 unsupported, 1 any, 2 off, 3 on) against "gfx90a:sramecc+:xnack-". */
static int feature_fits(unsigned field, const char* arch, const char* feature) {
    const char* at = strstr(arch, feature);
    if (field < 2 || !at) return 1;
    return (at[strlen(feature)] == '+') == (field == 3);
}

static size_t image_size(const unsigned char* image) {
    const Elf64_Ehdr* header = (const Elf64_Ehdr*)image;
    return header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
}

static int image_error(const unsigned char* image, int device) {
    if (any_image()) return success;
    const Elf64_Ehdr* header = (const Elf64_Ehdr*)image;
    if (memcmp(image, ELFMAG, 4) || header->e_machine != 224 /* EM_AMDGPU */) return invalid_image;
    char arch[64];
    arch_of(device, arch);
    if ((header->e_flags & 0xff) != mach_of(arch)) return no_binary_for_gpu;
    if (!feature_fits(header->e_flags >> 8 & 3, arch, "xnack")) return no_binary_for_gpu;
    if (!feature_fits(header->e_flags >> 10 & 3, arch, "sramecc")) return no_binary_for_gpu;
    return success;
}

/* The kernel's descriptor, symbol "name.kd"; its first word is the static LDS in bytes. */
static const unsigned char* descriptor(const unsigned char* image, const char* name) {
    const Elf64_Ehdr* header = (const Elf64_Ehdr*)image;
    const Elf64_Shdr* sections = (const Elf64_Shdr*)(image + header->e_shoff);
    char wanted[512];
    snprintf(wanted, sizeof wanted, "%s.kd", name);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_DYNSYM) continue;
        const char* strings = (const char*)image + sections[sections[i].sh_link].sh_offset;
        const Elf64_Sym* symbols = (const Elf64_Sym*)(image + sections[i].sh_offset);
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++) {
            if (strcmp(strings + symbols[s].st_name, wanted)) continue;
            const Elf64_Shdr* home = &sections[symbols[s].st_shndx];
            return image + home->sh_offset + (symbols[s].st_value - home->sh_addr);
        }
    }
    return NULL;
}

int hipModuleLoadData(void** module, const void* image) {
    FAIL_IF_ASKED("hipModuleLoadData");
    int error = image_error(image, current);
    if (error) return done(error);
    char line[128];
    snprintf(line, sizeof line, "hipModuleLoadData device %d %.16s", current, (const char*)image);
    record(line);
    struct module* m = calloc(1, sizeof *m);
    m->device = current;
    m->loaded = 1;
    m->given = image;
    m->bytes = any_image() ? strlen(image) : image_size(image);
    m->image = malloc(m->bytes);
    memcpy(m->image, image, m->bytes);
    *module = m;
    return success;
}

int hipModuleUnload(void* module) {
    record("hipModuleUnload");
    ((struct module*)module)->loaded = 0;
    return success;
}

int hipModuleGetFunction(void** function, void* module, const char* name) {
    FAIL_IF_ASKED("hipModuleGetFunction");
    struct module* m = module;
    if (!any_image() && !descriptor(m->image, name)) return done(not_found);
    char line[600];
    snprintf(line, sizeof line, "hipModuleGetFunction %s", name);
    record(line);
    struct function* f = calloc(1, sizeof *f);
    f->module = m;
    f->name = strdup(name);
    *function = f;
    return success;
}

static unsigned static_lds(const struct function* f) {
    unsigned bytes = 0;
    if (!any_image()) memcpy(&bytes, descriptor(f->module->image, f->name), sizeof bytes);
    return number("FAKE_HIP_STATIC_LDS", (int)bytes);
}

int hipFuncGetAttribute(int* value, int attribute, void* function) {
    FAIL_IF_ASKED("hipFuncGetAttribute");
    *value = attribute == 1 ? (int)static_lds(function) : number("FAKE_HIP_FUNCTION_THREADS", 1024);
    return success;
}

/* --- launch --------------------------------------------------------------------------------------------------- */

void fake_hip_on_launch(on_launch callback) { launched = callback; }

static int launch_error(const struct function* f, unsigned grid, unsigned block, unsigned shared, void* stream) {
    if (!f->module->loaded || f->module->device != current) return invalid_handle;
    if (stream_error(stream)) return invalid_handle;
    if (!grid || !block || block > 1024 || (uint64_t)grid * block >= 1ull << 32) return invalid_value;
    if (static_lds(f) + shared > (unsigned)number("FAKE_HIP_LDS", 65536)) return launch_out_of_resources;
    return success;
}

int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** parameters, void** extra) {
    FAIL_IF_ASKED("hipModuleLaunchKernel");
    if (parameters || !extra || (intptr_t)extra[0] != 1 || (intptr_t)extra[2] != 2 || (intptr_t)extra[4] != 3)
        return done(invalid_value);
    const struct function* f = function;
    const unsigned char* bytes = extra[1];
    size_t size = *(size_t*)extra[3];
    /* As HIP, this keeps no copy of a code object: whoever gave it keeps it. */
    if (f->module->loaded && memcmp(f->module->given, f->module->image, f->module->bytes)) return done(invalid_image);
    if (getenv("FAKE_HIP_LOG")) {
        char* line = malloc(1024 + 2 * size);
        int at = sprintf(line,
                         "launch %.500s grid %u %u %u block %u %u %u shared %u stream %p device %d arguments ", f->name,
                         gx, gy, gz, bx, by, bz, shared, stream, current);
        for (size_t i = 0; i < size; i++) at += sprintf(line + at, "%02x", bytes[i]);
        record(line);
        free(line);
    }
    if (!launched) return success;
    int error = launch_error(f, gx, bx, shared, stream);
    if (!error) error = launched(f->module->image, f->module->bytes, f->name, gx, bx, shared, bytes, size, stream, current);
    return done(error);
}
