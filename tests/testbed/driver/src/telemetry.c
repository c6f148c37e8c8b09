/*
 * What changes with time: power, energy, temperature, clocks, utilisation, and why clocks are low.
 *
 * All of it follows from `load` (per cent over time), `power` (milliwatts over time), `warmth` (where a temperature
 * goes: per mille of the way from idle to full load, over time) and the event reasons
 * (`reason.NAME`: per mille of the time for which the reason holds, over time), integrated from the epoch.  A
 * temperature approaches its target exponentially, and a clock is a share of the loaded one while a reason that
 * slows it down holds: a model to exercise readers with, not a claim about any GPU.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "device.h"

#define SECOND_NS 1000000000u
#define MEMORY_CLOCK 2

static const struct {
    uint64_t bit;
    const char *name;
} reasons[] = {
    {0x1, "gpu_idle"},    {0x2, "application_clocks"}, {0x4, "sw_power_cap"}, {0x8, "hw_slowdown"},
    {0x10, "sync_boost"}, {0x20, "sw_thermal"},        {0x40, "hw_thermal"},  {0x80, "power_brake"},
    {0x100, "display_clocks"},
};

int gpu_is_idle(const gpu_t *gpu) { return gpu_number_or(gpu, "load", 0) == 0; }

/* Milliwatts x seconds between two moments; they are millijoules. */
static double energy_between(const gpu_t *gpu, uint64_t from, uint64_t to) {
    char key[64];
    double energy = 0;
    snprintf(key, sizeof key, "gpu.%d.power", gpu->number);
    integrate_number(key, from, to, &energy);
    return energy;
}

double gpu_energy_mj(const gpu_t *gpu) { return energy_between(gpu, gpu_epoch(gpu), boottime_ns()); }

double gpu_power_mw(const gpu_t *gpu) { return (double)gpu_number_or(gpu, "power", 0); }

double gpu_mean_power_mw(const gpu_t *gpu) {
    uint64_t now = boottime_ns();
    return energy_between(gpu, now - SECOND_NS, now);
}

typedef struct {
    double celsius, idle, full, tau;
} warmth_t;

static void warm(void *context, int64_t per_mille, uint64_t length) {
    warmth_t *w = context;
    const double target = w->idle + (w->full - w->idle) * (double)per_mille / 1000;
    w->celsius = target + (w->celsius - target) * exp(-((double)length / 1e9) / w->tau);
}

nvmlReturn_t gpu_temperature(const gpu_t *gpu, const char *part, int *celsius) {
    char key[64];
    int64_t number;
    snprintf(key, sizeof key, "%s.now", part);
    nvmlReturn_t code = gpu_number(gpu, key, &number); /* set by a fault */
    if (code == NVML_SUCCESS)
        *celsius = (int)number;
    if (code != NVML_ERROR_NOT_SUPPORTED)
        return code;
    snprintf(key, sizeof key, "%s.idle", part);
    code = gpu_number(gpu, key, &number);
    if (code != NVML_SUCCESS)
        return code;
    warmth_t warmth = {.celsius = (double)number, .idle = (double)number};
    snprintf(key, sizeof key, "%s.full", part);
    warmth.full = (double)gpu_number_or(gpu, key, number);
    warmth.tau = (double)gpu_number_or(gpu, "temperature.tau", 20);
    snprintf(key, sizeof key, "gpu.%d.warmth", gpu->number);
    walk_number(key, 0, boottime_ns(), warm, &warmth); /* a driver that is loaded anew cools nothing */
    *celsius = (int)lround(warmth.celsius);
    return NVML_SUCCESS;
}

uint64_t gpu_reason_ns(const gpu_t *gpu, const char *reason) {
    char key[64];
    double per_mille_seconds = 0;
    snprintf(key, sizeof key, "gpu.%d.reason.%s", gpu->number, reason);
    integrate_number(key, gpu_epoch(gpu), boottime_ns(), &per_mille_seconds);
    snprintf(key, sizeof key, "counted.%s", reason); /* before this machine was plugged in */
    return (uint64_t)(per_mille_seconds * 1e6) + (uint64_t)gpu_number_or(gpu, key, 0);
}

/* A reason that holds for r per mille of the time holds in the first r milliseconds of every second. */
static int reason_holds(const gpu_t *gpu, const char *reason) {
    char key[64];
    snprintf(key, sizeof key, "reason.%s", reason);
    return (int64_t)(boottime_ns() % SECOND_NS / 1000000u) < gpu_number_or(gpu, key, 0);
}

static nvmlReturn_t current_reasons(const gpu_t *gpu, unsigned long long *mask) {
    int64_t supported;
    if (!mask)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = gpu_number(gpu, "reasons.supported", &supported);
    if (code != NVML_SUCCESS)
        return code;
    *mask = 0;
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reason_holds(gpu, reasons[i].name))
            *mask |= reasons[i].bit;
    if (*mask & (0x40 | 0x80))
        *mask |= 0x8; /* the umbrella bit stands with either of its causes */
    if (!*mask && gpu_is_idle(gpu))
        *mask = 0x1;
    *mask &= (unsigned long long)supported;
    return NVML_SUCCESS;
}

#define REASONS(current, all)                                                                                        \
    nvmlReturn_t current(nvmlDevice_t device, unsigned long long *mask) {                                            \
        DEVICE_CALL(device);                                                                                         \
        return current_reasons(gpu, mask);                                                                           \
    }                                                                                                                \
    nvmlReturn_t all(nvmlDevice_t device, unsigned long long *mask) {                                                \
        DEVICE_CALL(device);                                                                                         \
        return gpu_ull(gpu, "reasons.supported", mask);                                                              \
    }

REASONS(nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetSupportedClocksEventReasons)
REASONS(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetSupportedClocksThrottleReasons)

static void add_idle(void *context, int64_t load, uint64_t length) { *(uint64_t *)context += load == 0 ? length : 0; }

uint64_t gpu_idle_ns(const gpu_t *gpu) {
    char key[64];
    uint64_t idle = 0;
    snprintf(key, sizeof key, "gpu.%d.load", gpu->number);
    walk_number(key, gpu_epoch(gpu), boottime_ns(), add_idle, &idle);
    return idle;
}

/* Either kind of thermal slowdown: while both hold, that is one time and not two. */
static uint64_t thermal_ns(const gpu_t *gpu) {
    const uint64_t sw = gpu_reason_ns(gpu, "sw_thermal"), hw = gpu_reason_ns(gpu, "hw_thermal");
    return sw > hw ? sw : hw;
}

nvmlReturn_t gpu_violation_ns(const gpu_t *gpu, unsigned int policy, uint64_t *nanoseconds) {
    if (policy > 5 && policy != 10 && policy != 11)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu_number_or(gpu, "violations", 0))
        return NVML_ERROR_NOT_SUPPORTED;
    uint64_t total = 0;
    if (policy == 0)
        total = gpu_reason_ns(gpu, "sw_power_cap");
    else if (policy == 1)
        total = thermal_ns(gpu);
    else if (policy == 2)
        total = gpu_reason_ns(gpu, "sync_boost");
    *nanoseconds = total;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned int policy, nvmlViolationTime_t *time) {
    DEVICE_CALL(device);
    uint64_t nanoseconds;
    if (!time)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = gpu_violation_ns(gpu, policy, &nanoseconds);
    if (code == NVML_SUCCESS)
        *time = (nvmlViolationTime_t){.reference_time = wall_clock_us(), .violation_time = nanoseconds};
    return code;
}

/* The guest of a vGPU is told neither power nor energy: nvidia-smi prints N/A there. */
static int tells_power(const gpu_t *gpu) { return gpu_number_or(gpu, "virtualization", 0) != 2; }

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    DEVICE_CALL(device);
    if (!milliwatts)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!tells_power(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *milliwatts = (unsigned int)lround(gpu_number_or(gpu, "power.averaged", 0) ? gpu_mean_power_mw(gpu)
                                                                               : gpu_power_mw(gpu));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    DEVICE_CALL(device);
    if (!millijoules)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!tells_power(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *millijoules = (unsigned long long)gpu_energy_mj(gpu);
    return NVML_SUCCESS;
}

UINT(nvmlDeviceGetEnforcedPowerLimit, "power.enforced")
UINT(nvmlDeviceGetPowerManagementLimit, "power.limit")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power.default")
UINT(nvmlDeviceGetPowerSource, "power.source")

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
                                                          unsigned int *most) {
    DEVICE_CALL(device);
    nvmlReturn_t code = gpu_uint(gpu, "power.min", least);
    return code == NVML_SUCCESS ? gpu_uint(gpu, "power.max", most) : code;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius) {
    DEVICE_CALL(device);
    return sensor || !celsius ? NVML_ERROR_INVALID_ARGUMENT : gpu_temperature(gpu, "temperature", (int *)celsius);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *answer) {
    DEVICE_CALL(device);
    if (!answer)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (answer->version != STRUCT_VERSION(sizeof *answer, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return answer->sensor ? NVML_ERROR_INVALID_ARGUMENT : gpu_temperature(gpu, "temperature", &answer->temperature);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_v1_t *answer) {
    DEVICE_CALL(device);
    int64_t limit;
    int celsius;
    if (!answer)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (answer->version != STRUCT_VERSION(sizeof *answer, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = gpu_number(gpu, "temperature.max_operating", &limit);
    if (code == NVML_SUCCESS)
        code = gpu_temperature(gpu, "temperature", &celsius);
    if (code == NVML_SUCCESS)
        answer->margin = (int)limit - celsius;
    return code;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int which, unsigned int *celsius) {
    static const char *const names[] = {"shutdown", "slowdown", "memory_max", "gpu_max"};
    DEVICE_CALL(device);
    char key[64];
    if (which > 7)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (which >= sizeof names / sizeof *names)
        return NVML_ERROR_NOT_SUPPORTED;
    snprintf(key, sizeof key, "threshold.%s", names[which]);
    return gpu_uint(gpu, key, celsius);
}

static nvmlReturn_t clock_mhz(const gpu_t *gpu, const char *when, unsigned int which, unsigned int *mhz) {
    static const char *const names[] = {"sm", "sm", "memory", "video"}; /* graphics and SM run together */
    char key[64];
    if (which >= sizeof names / sizeof *names)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(key, sizeof key, "clock.%s.%s", names[which], when);
    return gpu_uint(gpu, key, mhz);
}

/* Per mille of the loaded clock that the chip runs at now: `driver.share.REASON` while a reason holds. */
int64_t gpu_clock_share(const gpu_t *gpu) {
    int64_t least = gpu_number_or(gpu, "clock.share", 1000);
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        char key[64];
        int64_t share;
        snprintf(key, sizeof key, "driver.share.%s", reasons[i].name);
        if (read_number(key, &share) == NVML_SUCCESS && share < least && reason_holds(gpu, reasons[i].name))
            least = share;
    }
    return least;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int which, unsigned int *mhz) {
    DEVICE_CALL(device);
    nvmlReturn_t code = clock_mhz(gpu, gpu_is_idle(gpu) ? "idle" : "loaded", which, mhz);
    if (code == NVML_SUCCESS && which != MEMORY_CLOCK && !gpu_is_idle(gpu))
        *mhz = (unsigned int)(*mhz * gpu_clock_share(gpu) / 1000);
    return code;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int which, unsigned int *mhz) {
    DEVICE_CALL(device);
    return clock_mhz(gpu, "max", which, mhz);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int which, unsigned int *mhz) {
    DEVICE_CALL(device);
    return clock_mhz(gpu, "app", which, mhz);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *pstate) {
    DEVICE_CALL(device);
    return gpu_uint(gpu, gpu_is_idle(gpu) ? "pstate.idle" : "pstate.loaded", pstate);
}

/* KB/s; what a machine is told, else in proportion to its load. */
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned int *value) {
    DEVICE_CALL(device);
    if (!value || counter < 0 || counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    const int64_t usual = 10000 * gpu_number_or(gpu, "load", 0);
    *value = (unsigned int)gpu_number_or(gpu, counter ? "pcie.rx_kbps" : "pcie.tx_kbps", usual);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    DEVICE_CALL(device);
    int64_t load;
    if (!rates)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu_number_or(gpu, "mig.current", 0))
        return NVML_ERROR_NOT_SUPPORTED; /* there is no such number for a GPU that is cut into instances */
    nvmlReturn_t code = gpu_number(gpu, "load", &load);
    if (code == NVML_SUCCESS)
        *rates = (nvmlUtilization_t){.gpu = (unsigned int)load, .memory = (unsigned int)load / 2};
    return code;
}
