/* Who computes on a GPU, and who shares the machine: processes, virtualisation, confidential computing. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

#define PODS_SUFFIX ".processes"
#define POD_BYTES (512ull << 20)

typedef struct {
    unsigned int room, count;
    void *list;
    size_t each; /* bytes of one element: 16 before, 24 from version 2 on */
} answer_t;

static void add(answer_t *answer, unsigned int pid, unsigned long long bytes) {
    if (answer->list && answer->count < answer->room) {
        nvmlProcessInfo_t info = {.pid = pid, .used = bytes, .gpu_instance = ~0u, .compute_instance = ~0u};
        memcpy((char *)answer->list + answer->count * answer->each, &info, answer->each);
    }
    answer->count++;
}

/* `gpu.N.processes`: PID:BYTES ..., whether or not there is such a process. */
static void add_told(answer_t *answer, const gpu_t *gpu) {
    const char *list;
    if (gpu_text(gpu, "processes", &list) != NVML_SUCCESS)
        return;
    for (char *rest = (char *)list; *rest; rest += strspn(rest, " ")) {
        unsigned int pid = (unsigned int)strtoul(rest, &rest, 10);
        add(answer, pid, *rest == ':' ? strtoull(rest + 1, &rest, 10) : 0);
    }
}

/* Beside the state, a file that the node writes: `UUID PID` lines of the containers that compute; it counts those
 * that live. */
static void add_pods(answer_t *answer, const gpu_t *gpu) {
    const char *uuid, *state = getenv(STATE_VARIABLE);
    char path[4096], line[256], name[128];
    if (!state || gpu_text(gpu, "uuid", &uuid) != NVML_SUCCESS)
        return;
    snprintf(path, sizeof path, "%s%s", state, PODS_SUFFIX);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    int pid;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%127s %d", name, &pid) == 2 && pid > 0 && strcmp(name, uuid) == 0 &&
            (kill(pid, 0) == 0 || errno == EPERM))
            add(answer, (unsigned int)pid, POD_BYTES);
    fclose(file);
}

static nvmlReturn_t running(const gpu_t *gpu, unsigned int *count, void *list, size_t each) {
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    answer_t answer = {.room = *count, .list = list, .each = each};
    add_told(&answer, gpu);
    add_pods(&answer, gpu);
    *count = answer.count;
    return answer.count > (list ? answer.room : 0) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESSES(function, bytes)                                                                                   \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, void *list) {                                    \
        DEVICE_CALL(device);                                                                                         \
        return running(gpu, count, list, bytes);                                                                     \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, 16)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, sizeof(nvmlProcessInfo_t))
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, sizeof(nvmlProcessInfo_t))

/* Nobody runs an MPS server on simulated hardware. */
#define NO_PROCESSES(function)                                                                                       \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, void *list) {                                    \
        DEVICE_CALL(device);                                                                                         \
        (void)gpu;                                                                                                   \
        (void)list;                                                                                                  \
        if (!count)                                                                                                  \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                      \
        *count = 0;                                                                                                  \
        return NVML_SUCCESS;                                                                                         \
    }

NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

UINT(nvmlDeviceGetVirtualizationMode, "virtualization")

static unsigned int confidential(const char *key) {
    int64_t number;
    return read_number(key, &number) == NVML_SUCCESS ? (unsigned int)number : 0;
}

nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state) {
    SYSTEM_CALL();
    if (!state)
        return NVML_ERROR_INVALID_ARGUMENT;
    const char *ignored;
    nvmlReturn_t code = read_text("confidential.feature", &ignored);
    if (code == NVML_SUCCESS)
        *state = (nvmlConfComputeSystemState_t){confidential("confidential.environment"),
                                                confidential("confidential.feature"), 0};
    return code;
}
