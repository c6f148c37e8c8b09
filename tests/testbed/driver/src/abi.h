/*
 * The binary interface of NVML, as far as this library answers it.
 *
 * Names, numbers and layouts are facts of NVIDIA's published interface, taken from its Python binding
 * (PyPI nvidia-ml-py 13.615.71, pynvml.py), which is also what calls this library.  Nothing here is NVIDIA code.
 */
#ifndef SIM_ABI_H
#define SIM_ABI_H

#include <stdint.h>

typedef unsigned int nvmlReturn_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_UNKNOWN = 999,
};

typedef struct device *nvmlDevice_t;

typedef struct {
    char legacy_bus_id[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned long long reference_time, violation_time;
} nvmlViolationTime_t;

enum { VALUE_UINT = 1, VALUE_ULONG_LONG = 3, VALUE_INT = 5 };

typedef struct {
    uint32_t field_id, scope_id;
    int64_t timestamp, latency_usec;
    uint32_t value_type, nvml_return;
    union {
        double d;
        uint32_t ui;
        uint64_t ull;
        int32_t si;
    } value;
} nvmlFieldValue_t;

typedef struct {
    unsigned int version, sensor;
    int temperature;
} nvmlTemperature_v1_t;

typedef struct {
    unsigned int version;
    int margin;
} nvmlMarginTemperature_v1_t;

typedef struct {
    unsigned char cluster_uuid[16];
    uint32_t status, clique, state;
} nvmlGpuFabricInfo_t;

typedef struct {
    unsigned int version;
    unsigned char cluster_uuid[16];
    uint32_t status, clique, state, health_mask;
    uint8_t health_summary; /* version 3 only: version 2 ends before it */
} nvmlGpuFabricInfoV_t;

typedef struct {
    unsigned int max, high, partial, low, none;
} nvmlRowRemapperHistogramValues_t;

typedef struct {
    unsigned int version;
    unsigned long long aggregate_unc_parity, aggregate_unc_secded, aggregate_cor;
    unsigned long long volatile_unc_parity, volatile_unc_secded, volatile_cor;
    unsigned long long bucket_l2, bucket_sm, bucket_pcie, bucket_mcu, bucket_other;
    unsigned int threshold_exceeded;
} nvmlEccSramErrorStatus_v1_t;

typedef struct {
    unsigned int version, channel_pending, tpc_pending;
} nvmlRepairStatus_v1_t;

typedef struct {
    unsigned int version, unrepairable;
} nvmlUnrepairableMemory_v1_t;

typedef struct {
    unsigned int version, fan, speed;
} nvmlFanSpeedInfo_v1_t;

typedef struct event_set *nvmlEventSet_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long event_type, event_data;
    unsigned int gpu_instance, compute_instance;
} nvmlEventData_t;

typedef struct {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance; /* from version 2 on */
} nvmlProcessInfo_t;

typedef struct {
    unsigned int environment, feature, dev_tools;
} nvmlConfComputeSystemState_t;

/* A structure's version word: its size, and its version in the top byte. */
#define STRUCT_VERSION(size, number) ((unsigned int)(size) | ((unsigned int)(number) << 24))

_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 0x28, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(nvmlGpuFabricInfoV_t) == 0x28, "nvmlGpuFabricInfo_v3_t");
_Static_assert(sizeof(nvmlTemperature_v1_t) == 0xC, "nvmlTemperature_v1_t");
_Static_assert(sizeof(nvmlEccSramErrorStatus_v1_t) == 0x68, "nvmlEccSramErrorStatus_v1_t");
_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo_v2_t");

#endif
