/* What a GPU is: names, slot, memory, modes, PCIe link, CPUs next to it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "device.h"

#define TEXT(function, key)                                                                                          \
    nvmlReturn_t function(nvmlDevice_t device, char *buffer, unsigned int length) {                                  \
        DEVICE_CALL(device);                                                                                         \
        return gpu_copy_text(gpu, key, buffer, length);                                                              \
    }

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
UINT(nvmlDeviceGetBrand, "brand")
UINT(nvmlDeviceGetMinorNumber, "minor")
UINT(nvmlDeviceGetModuleId, "module")
UINT(nvmlDeviceGetMultiGpuBoard, "multi_gpu_board")
UINT(nvmlDeviceGetArchitecture, "architecture")
UINT(nvmlDeviceGetPersistenceMode, "persistence")
UINT(nvmlDeviceGetComputeMode, "compute_mode")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.max_generation")
UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie.card_generation")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie.max_width")
UINT(nvmlDeviceGetNumaNodeId, "numa_node_id")

UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.now_generation")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie.now_width")

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *count) {
    DEVICE_CALL(device);
    uint64_t replays;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = gpu_counter(gpu, "pcie.replays", SINCE_EPOCH, &replays);
    if (code == NVML_SUCCESS)
        *count = (unsigned int)replays;
    return code;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    DEVICE_CALL(device);
    if (!index)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (*index = 0; visible_gpu(*index) != gpu; ++*index)
        ;
    return NVML_SUCCESS;
}

static nvmlReturn_t pair(const gpu_t *gpu, const char *first_key, unsigned int *first, const char *second_key,
                         unsigned int *second) {
    if (!first || !second)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = gpu_uint(gpu, first_key, first);
    return code == NVML_SUCCESS ? gpu_uint(gpu, second_key, second) : code;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    DEVICE_CALL(device);
    return pair(gpu, "compute.major", (unsigned int *)major, "compute.minor", (unsigned int *)minor);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    DEVICE_CALL(device);
    return pair(gpu, "mig.current", current, "mig.pending", pending);
}

static nvmlReturn_t memory(const gpu_t *gpu, nvmlMemory_v2_t *memory) {
    nvmlReturn_t code = gpu_ull(gpu, "memory.total", &memory->total);
    memory->reserved = (unsigned long long)gpu_number_or(gpu, "memory.reserved", 0);
    memory->used = (unsigned long long)gpu_number_or(gpu, "memory.used", 0);
    memory->free = memory->total - memory->reserved - memory->used;
    return code;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *answer) {
    DEVICE_CALL(device);
    nvmlMemory_v2_t now = {0};
    if (!answer)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = memory(gpu, &now);
    /* Version 1 has no word for reserved memory and counts it as used. */
    *answer = (nvmlMemory_t){.total = now.total, .free = now.free, .used = now.used + now.reserved};
    return code;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *answer) {
    DEVICE_CALL(device);
    if (!answer)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (answer->version != STRUCT_VERSION(sizeof *answer, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return memory(gpu, answer);
}

void fill_pci_info(const char *address, nvmlPciInfo_t *info) {
    memset(info, 0, sizeof *info);
    sscanf(address, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", info->domain, info->bus & 0xffu,
             info->device & 0xffu);
    snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "%04X:%02X:%02X.0", info->domain & 0xffffu,
             info->bus & 0xffu, info->device & 0xffu);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    DEVICE_CALL(device);
    const char *address;
    if (!info)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = gpu_text(gpu, "pci", &address);
    if (code != NVML_SUCCESS)
        return code;
    fill_pci_info(address, info);
    info->pci_device_id = (unsigned int)gpu_number_or(gpu, "pci.device_id", 0);
    info->pci_subsystem_id = (unsigned int)gpu_number_or(gpu, "pci.subsystem_id", 0);
    return NVML_SUCCESS;
}

/* A bit set as hexadecimal 64-bit words, the lowest first; words beyond the caller's array are left out. */
static nvmlReturn_t bit_set(const gpu_t *gpu, const char *key, unsigned int words, unsigned long *set) {
    const char *text;
    if (!set || !words)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = gpu_text(gpu, key, &text);
    if (code != NVML_SUCCESS)
        return code;
    char *rest = (char *)text;
    for (unsigned int i = 0; i < words; i++)
        set[i] = *rest ? strtoul(rest, &rest, 16) : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set) {
    DEVICE_CALL(device);
    return bit_set(gpu, "cpus", words, set);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                 unsigned int scope) {
    DEVICE_CALL(device);
    return scope > 1 ? NVML_ERROR_INVALID_ARGUMENT : bit_set(gpu, scope ? "cpus.socket" : "cpus", words, set);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                         unsigned int scope) {
    DEVICE_CALL(device);
    return scope > 1 ? NVML_ERROR_INVALID_ARGUMENT : bit_set(gpu, "memory_nodes", words, set);
}
