/* Stands in for NVIDIA's management library. Each call reads the file that FAKE_NVML names, so a
 * test changes the machine while it runs. Lines:
 *   init CODE
 *   gpu UUID NAME USED_MIB ERROR PID[,PID...]|-       (ERROR 15: not even a handle is given) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char uuid[96], name[96]; unsigned long long used; int error, pids_count; unsigned pids[16]; } Gpu;
typedef struct { int init, count; Gpu gpus[16]; } Machine;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } ProcessInfo;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Utilisation;

static Machine look(void) {
    Machine machine = {0};
    char line[512], pids[256];
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    while (file && fgets(line, sizeof line, file)) {
        Gpu *gpu = &machine.gpus[machine.count];
        if (sscanf(line, "init %d", &machine.init) == 1) continue;
        if (sscanf(line, "gpu %95s %95s %llu %d %255s", gpu->uuid, gpu->name, &gpu->used, &gpu->error, pids) != 5) continue;
        for (char *part = strtok(pids, ","); part && *part != '-'; part = strtok(NULL, ","))
            gpu->pids[gpu->pids_count++] = (unsigned)atoi(part);
        machine.count++;
    }
    if (file) fclose(file);
    return machine;
}

#define GPU(handle) Machine machine = look(); size_t at = (size_t)(handle) - 1; \
    if (at >= (size_t)machine.count) return 6; Gpu gpu = machine.gpus[at]; if (gpu.error) return gpu.error

int nvmlInitWithFlags(unsigned flags) { (void)flags; return look().init; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "as the test wants"; }
int nvmlDeviceGetCount_v2(unsigned *count) { Machine m = look(); *count = m.count; return m.init; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    Machine machine = look();
    if (index >= (unsigned)machine.count) return 2;
    *handle = (void *)(size_t)(index + 1);
    return machine.gpus[index].error == 15 ? 15 : 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    Machine machine = look();
    for (int i = 0; i < machine.count; i++)
        if (!strcmp(uuid, machine.gpus[i].uuid)) {
            *handle = (void *)(size_t)(i + 1);
            return machine.gpus[i].error == 15 ? 15 : 0;
        }
    return 6;
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size) {
    Machine machine = look();
    snprintf(uuid, size, "%s", machine.gpus[(size_t)handle - 1].uuid);
    return 0;
}
int nvmlDeviceGetName(void *handle, char *name, unsigned size) { GPU(handle); snprintf(name, size, "%s", gpu.name); return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *later) { GPU(handle); *now = *later = 0; return 3; }
int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *memory) {
    GPU(handle);
    memory->total = 80ull << 30;
    memory->used = gpu.used << 20;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, Utilisation *rates) { GPU(handle); rates->gpu = 50; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *infos) {
    GPU(handle);
    if (*count < (unsigned)gpu.pids_count) { *count = gpu.pids_count; return 7; }
    *count = gpu.pids_count;
    for (int i = 0; i < gpu.pids_count; i++) infos[i] = (ProcessInfo){gpu.pids[i], 1ull << 30, 0, 0};
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *infos) {
    (void)infos;
    GPU(handle);
    *count = 0;
    return 0;
}
