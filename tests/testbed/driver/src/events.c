/*
 * Events: Xids that the driver tells of while somebody has registered for them, and only from then on.
 *
 * An Xid N of a GPU is a counter like any other (`xid.N`, among the numbers in `xids`), so a fault can raise one once
 * or keep raising it; every registration remembers how many of each it has told since it began.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "call.h"
#include "device.h"

#define XID_CRITICAL_ERROR 0x8ull
#define LARGEST_XID 1024
#define POLL_NS 20000000

typedef struct {
    unsigned long long types; /* 0: this GPU is not registered */
    uint64_t since;
    uint32_t told[LARGEST_XID];
} registration_t;

struct event_set {
    registration_t gpus[MAX_GPUS];
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    SYSTEM_CALL();
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    SYSTEM_CALL();
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    DEVICE_CALL(device);
    if (!types)
        return NVML_ERROR_INVALID_ARGUMENT;
    *types = (unsigned long long)gpu_number_or(gpu, "events", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    DEVICE_CALL(device);
    const unsigned long long supported = (unsigned long long)gpu_number_or(gpu, "events", 0);
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!supported || (types & ~supported))
        return NVML_ERROR_NOT_SUPPORTED;
    registration_t *own = &set->gpus[gpu->number];
    if (!own->types)
        *own = (registration_t){.since = boottime_ns()};
    own->types |= types;
    return NVML_SUCCESS;
}

/* The next Xid of this GPU that its registration has not been told of; 0 when there is none. */
static unsigned int next_xid(const gpu_t *gpu, registration_t *own) {
    const char *numbers;
    if (gpu_text(gpu, "xids", &numbers) != NVML_SUCCESS)
        return 0;
    char *rest = (char *)numbers;
    while (*rest) {
        const unsigned long number = strtoul(rest, &rest, 10);
        char key[32];
        rest += strspn(rest, " ");
        if (!number || number >= LARGEST_XID)
            continue;
        snprintf(key, sizeof key, "xid.%lu", number);
        if (gpu_added(gpu, key, own->since, boottime_ns()) > own->told[number]) {
            own->told[number]++;
            return (unsigned int)number;
        }
    }
    return 0;
}

static nvmlReturn_t next_event(nvmlEventSet_t set, nvmlEventData_t *data) {
    for (int number = 0; number < MAX_GPUS; number++) {
        registration_t *own = &set->gpus[number];
        gpu_t *gpu = gpu_slot(number);
        const char *ignored;
        if (!own->types)
            continue;
        if (gpu_text(gpu, "handle", &ignored) == NVML_ERROR_GPU_IS_LOST)
            return NVML_ERROR_GPU_IS_LOST;
        const unsigned int xid = own->types & XID_CRITICAL_ERROR ? next_xid(gpu, own) : 0;
        if (xid) {
            *data = (nvmlEventData_t){.device = gpu,
                                      .event_type = XID_CRITICAL_ERROR,
                                      .event_data = xid,
                                      .gpu_instance = 0xFFFFFFFFu, /* not of a MIG instance */
                                      .compute_instance = 0xFFFFFFFFu};
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_TIMEOUT;
}

static nvmlReturn_t wait_for_event(call_t *call, nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    if (!set || !data)
        return NVML_ERROR_INVALID_ARGUMENT;
    const uint64_t until = boottime_ns() + (uint64_t)timeout_ms * 1000000u;
    const struct timespec pause = {.tv_nsec = POLL_NS};
    nvmlReturn_t code;
    while ((code = next_event(set, data)) == NVML_ERROR_TIMEOUT && boottime_ns() < until) {
        call_end(call); /* others may call meanwhile */
        nanosleep(&pause, NULL);
        if ((code = call_resume(call)) != NVML_SUCCESS)
            break;
    }
    return code;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    SYSTEM_CALL();
    return wait_for_event(&call, set, data, timeout_ms);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    SYSTEM_CALL();
    return wait_for_event(&call, set, data, timeout_ms);
}
