/* Stands in for NVIDIA's management library in tests.
 *
 * Every call reads the file named by NVML_STAND_IN anew, so that a test changes what the
 * "driver" says while a program runs. Lines are `key value`:
 *
 *   init 9                  nvmlInit answers with this error
 *   count 2                 devices
 *   uuid.0 GPU-...          and so on for name, used, total (bytes), util (%), sm, sm_max (MHz),
 *                           reasons (bits), pcie (KB/s each way), nvlink (KiB each way)
 *   error.0 15              every call on device 0 answers with this error
 *   answer.FUNCTION 3       every call of FUNCTION answers with this error
 *   hang FUNCTION           calls of FUNCTION return when the line is gone
 *
 * Built with -DOLD_DRIVER it lacks the functions that came with later drivers.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int lookup(const char *key, char *value, size_t size) {
    const char *path = getenv("NVML_STAND_IN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    int found = 0;
    size_t length = strlen(key);
    while (file && !found && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    if (file) fclose(file);
    return found;
}

static unsigned long long number(const char *key, long device, unsigned long long fallback) {
    char name[64], value[128];
    if (device < 0) snprintf(name, sizeof name, "%s", key);
    else snprintf(name, sizeof name, "%s.%ld", key, device);
    return lookup(name, value, sizeof value) ? strtoull(value, NULL, 0) : fallback;
}

static int answer(const char *function, long device) {
    char key[96], value[128];
    while (lookup("hang", value, sizeof value) && !strcmp(value, function)) usleep(2000);
    snprintf(key, sizeof key, "answer.%s", function);
    int error = (int)number(key, -1, 0);
    return error || device < 0 ? error : (int)number("error", device, 0);
}

/* A handle is the number of its device plus one. */
#define DEVICE(handle) ((long)(intptr_t)(handle) - 1)
#define ANSWER(device) do { int e = answer(__func__, device); if (e) return e; } while (0)

static int opened = 0;

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    int error = (int)number("init", -1, 0);
    if (error) return error;
    ANSWER(-1);
    opened++;
    return 0;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { if (!opened) return 1; opened--; return 0; }
int stand_in_opened(void) { return opened; }
const char *nvmlErrorString(int error) { (void)error; return "an error of the stand-in"; }

int nvmlDeviceGetCount_v2(unsigned int *count) {
    ANSWER(-1);
    if (!opened) return 1;
    *count = (unsigned int)number("count", -1, 0);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    ANSWER((long)index);
    if (!opened) return 1;
    if (index >= number("count", -1, 0)) return 2;
    *handle = (void *)(intptr_t)(index + 1);
    return 0;
}

static int text(const char *key, long device, char *out, unsigned int size) {
    char name[64];
    snprintf(name, sizeof name, "%s.%ld", key, device);
    return lookup(name, out, size) ? 0 : 6;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int size) {
    ANSWER(DEVICE(handle));
    return text("uuid", DEVICE(handle), uuid, size);
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int size) {
    ANSWER(DEVICE(handle));
    return text("name", DEVICE(handle), name, size);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    char known[128];
    ANSWER(-1);
    if (!opened) return 1;
    for (long device = 0; device < (long)number("count", -1, 0); device++)
        if (!text("uuid", device, known, sizeof known) && !strcmp(known, uuid)) {
            *handle = (void *)(intptr_t)(device + 1);
            return (int)number("error", device, 0);
        }
    return 6;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    ANSWER(DEVICE(handle));
    memory[0] = number("total", DEVICE(handle), 0);
    memory[2] = number("used", DEVICE(handle), 0);
    memory[1] = memory[0] - memory[2];
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned int *rates) {
    ANSWER(DEVICE(handle));
    rates[0] = (unsigned int)number("util", DEVICE(handle), 0);
    rates[1] = 0;
    return 0;
}

int nvmlDeviceGetClockInfo(void *handle, int type, unsigned int *clock) {
    (void)type;
    ANSWER(DEVICE(handle));
    *clock = (unsigned int)number("sm", DEVICE(handle), 0);
    return 0;
}

int nvmlDeviceGetMaxClockInfo(void *handle, int type, unsigned int *clock) {
    (void)type;
    ANSWER(DEVICE(handle));
    *clock = (unsigned int)number("sm_max", DEVICE(handle), 0);
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    ANSWER(DEVICE(handle));
    *reasons = number("reasons", DEVICE(handle), 0);
    return 0;
}

int nvmlDeviceGetPcieThroughput(void *handle, int counter, unsigned int *rate) {
    (void)counter;
    ANSWER(DEVICE(handle));
    *rate = (unsigned int)number("pcie", DEVICE(handle), 0);
    return 0;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) {
    ANSWER(DEVICE(handle));
    *reasons = number("reasons", DEVICE(handle), 0);
    return 0;
}

typedef struct {
    unsigned int field, scope;
    long long timestamp, latency;
    int type, answer;
    unsigned long long value;
} field_value;

int nvmlDeviceGetFieldValues(void *handle, int count, field_value *values) {
    ANSWER(DEVICE(handle));
    for (int i = 0; i < count; i++) {
        unsigned long long none = ~0ull, links = number("nvlink", DEVICE(handle), none);
        values[i].answer = links == none ? 3 : 0;
        values[i].value = links;
    }
    return 0;
}
#endif
