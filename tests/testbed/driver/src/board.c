/* The card around the chip: its fans. */
#include <stdio.h>

#include "call.h"
#include "device.h"

nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *count) {
    DEVICE_CALL(device);
    return gpu_uint(gpu, "fans", count);
}

static nvmlReturn_t fan_exists(const gpu_t *gpu, unsigned int fan) {
    const int64_t count = gpu_number_or(gpu, "fans", 0);
    if (!count)
        return NVML_ERROR_NOT_SUPPORTED;
    return (int64_t)fan < count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* What the driver wants the fan to do, which is also all it tells: whether it turns, only the rpm say. */
static nvmlReturn_t intended(const gpu_t *gpu, unsigned int fan, unsigned int *percent) {
    if (!percent)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = fan_exists(gpu, fan);
    if (code != NVML_SUCCESS)
        return code;
    const int64_t idle = gpu_number_or(gpu, "fan.idle", 0), full = gpu_number_or(gpu, "fan.full", 0);
    *percent = (unsigned int)(idle + (full - idle) * gpu_number_or(gpu, "load", 0) / 100);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *percent) {
    DEVICE_CALL(device);
    return intended(gpu, 0, percent);
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *percent) {
    DEVICE_CALL(device);
    return intended(gpu, fan, percent);
}

nvmlReturn_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t device, unsigned int fan, unsigned int *percent) {
    DEVICE_CALL(device);
    return intended(gpu, fan, percent);
}

nvmlReturn_t nvmlDeviceGetFanSpeedRPM(nvmlDevice_t device, nvmlFanSpeedInfo_v1_t *answer) {
    DEVICE_CALL(device);
    unsigned int percent;
    char key[64];
    if (!answer)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (answer->version != STRUCT_VERSION(sizeof *answer, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = intended(gpu, answer->fan, &percent);
    if (code != NVML_SUCCESS)
        return code;
    snprintf(key, sizeof key, "fan.%u.stopped", answer->fan);
    answer->speed = gpu_number_or(gpu, key, 0) ? 0 : (unsigned int)(gpu_number_or(gpu, "fan.rpm", 0) * percent / 100);
    return NVML_SUCCESS;
}
