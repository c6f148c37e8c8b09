/* The library itself: initialisation, error texts, versions, and handles. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "call.h"

#define INIT_FLAG_NO_ATTACH 2u /* NVML_INIT_FLAG_NO_GPUS 1 and NO_ATTACH 2 are the known flags */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    return flags > (1u | INIT_FLAG_NO_ATTACH) ? NVML_ERROR_INVALID_ARGUMENT : call_initialise(__func__);
}

nvmlReturn_t nvmlInit_v2(void) { return call_initialise(__func__); }

nvmlReturn_t nvmlInit(void) { return call_initialise(__func__); }

nvmlReturn_t nvmlShutdown(void) { return call_shutdown(); }

const char *nvmlErrorString(nvmlReturn_t code) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "GPU access blocked by the operating system",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data",
        "vGPU ECC not supported", "Insufficient resources", "Frequency not supported", "Argument version mismatch",
        "Deprecated", "Not ready", "GPU not found", "Invalid state",
    };
    return code < sizeof texts / sizeof *texts ? texts[code] : "Unknown Error";
}

static nvmlReturn_t copy_key(const char *key, char *buffer, unsigned int size) {
    const char *text;
    nvmlReturn_t code = read_text(key, &text);
    return code == NVML_SUCCESS ? copy_text(text, buffer, size) : code;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    SYSTEM_CALL();
    return copy_key("driver.version", version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    SYSTEM_CALL();
    return copy_key("driver.nvml", version, length);
}

static nvmlReturn_t cuda_version(int *version) {
    int64_t number;
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = read_number("driver.cuda", &number);
    if (code == NVML_SUCCESS)
        *version = (int)number;
    return code;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    SYSTEM_CALL();
    return cuda_version(version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    SYSTEM_CALL();
    return cuda_version(version);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    SYSTEM_CALL();
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = visible_count();
    return NVML_SUCCESS;
}

/* `gpu.N.handle` is the error of a GPU that cannot be had: lost, or short of power. */
static nvmlReturn_t give(gpu_t *gpu, nvmlDevice_t *device) {
    const char *ignored;
    nvmlReturn_t code = gpu_text(gpu, "handle", &ignored);
    if (code != NVML_SUCCESS && code != NVML_ERROR_NOT_SUPPORTED)
        return code;
    *device = gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    SYSTEM_CALL();
    gpu_t *gpu = visible_gpu(index);
    return gpu && device ? give(gpu, device) : NVML_ERROR_INVALID_ARGUMENT;
}

typedef int match_fn(const char *wanted, const char *have);

static nvmlReturn_t find(const char *name, const char *wanted, match_fn *matches, nvmlDevice_t *device) {
    if (!wanted || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    gpu_t *gpu;
    for (unsigned int i = 0; (gpu = visible_gpu(i)); i++) {
        const char *have;
        if (gpu_text(gpu, name, &have) == NVML_SUCCESS && matches(wanted, have))
            return give(gpu, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

static int same_text(const char *wanted, const char *have) { return strcmp(wanted, have) == 0; }

static int same_address(const char *wanted, const char *have) {
    unsigned int domain = 0, bus, slot, own_domain, own_bus, own_slot;
    if (sscanf(wanted, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(wanted, "%x:%x", &bus, &slot) != 2)
            return 0;
    }
    sscanf(have, "%x:%x:%x", &own_domain, &own_bus, &own_slot);
    return domain == own_domain && bus == own_bus && slot == own_slot;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    SYSTEM_CALL();
    return find("uuid", uuid, same_text, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    SYSTEM_CALL();
    return find("serial", serial, same_text, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device) {
    SYSTEM_CALL();
    return find("pci", address, same_address, device);
}
