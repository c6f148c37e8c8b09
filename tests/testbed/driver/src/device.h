/*
 * What one source file knows of a GPU and another needs.  Called between call_begin and call_end.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "call.h"

/* Nothing runs on it: its load is 0. */
int gpu_is_idle(const gpu_t *gpu);

/* Milliwatts now, milliwatts averaged over the last second, and millijoules since the driver was loaded. */
double gpu_power_mw(const gpu_t *gpu);
double gpu_mean_power_mw(const gpu_t *gpu);
double gpu_energy_mj(const gpu_t *gpu);

/* Degrees Celsius of `part` ("temperature" or "memory_temperature"), as its model says or as it was set. */
nvmlReturn_t gpu_temperature(const gpu_t *gpu, const char *part, int *celsius);

/* Nanoseconds for which a clocks event reason ("sw_thermal", ...) has held since the driver was loaded. */
uint64_t gpu_reason_ns(const gpu_t *gpu, const char *reason);

/* The counter behind one NVML_PERF_POLICY_*. */
nvmlReturn_t gpu_violation_ns(const gpu_t *gpu, unsigned int policy, uint64_t *nanoseconds);

/* Links: is it up; a number of it (`gpu.N.link.L.NAME`); how many of all are up and lead to an NVSwitch. */
nvmlReturn_t link_number(const gpu_t *gpu, unsigned int link, const char *name, unsigned int *number);
nvmlReturn_t switch_links(const gpu_t *gpu, unsigned int *count);

void fill_pci_info(const char *address, nvmlPciInfo_t *info);

#endif
