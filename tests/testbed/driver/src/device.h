/*
 * What one source file knows of a GPU and another needs.  Called between call_begin and call_end.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "call.h"

/* The moment from which its counters count: driver load, GPU reset, or the first client after the last one left. */
uint64_t gpu_epoch(const gpu_t *gpu);

/* A counter: what it stands at by itself (`NAME`; not supported when there is no such line), what was added at once
 * (`step.NAME`: NS:COUNT ...), and what is added over time (`rate.NAME`: thousandths per second, over time).  Most
 * counters begin again with the epoch; some are written on the board and last for its life. */
typedef enum { SINCE_EPOCH, FOR_LIFE } lasts_t;
nvmlReturn_t gpu_counter(const gpu_t *gpu, const char *name, lasts_t lasts, uint64_t *count);

/* What was added to a counter in (from, to]. */
uint64_t gpu_added(const gpu_t *gpu, const char *name, uint64_t from, uint64_t to);

/* Nothing runs on it: its load is 0. */
int gpu_is_idle(const gpu_t *gpu);

/* Per mille of its loaded clock that it runs at: less while an event reason slows it down. */
int64_t gpu_clock_share(const gpu_t *gpu);

/* Milliwatts now, milliwatts averaged over the last second, and millijoules since the driver was loaded. */
double gpu_power_mw(const gpu_t *gpu);
double gpu_mean_power_mw(const gpu_t *gpu);
double gpu_energy_mj(const gpu_t *gpu);

/* Degrees Celsius of `part` ("temperature" or "memory_temperature"), as its model says or as it was set. */
nvmlReturn_t gpu_temperature(const gpu_t *gpu, const char *part, int *celsius);

/* Nanoseconds for which a clocks event reason ("sw_thermal", ...) has held since the driver was loaded. */
uint64_t gpu_reason_ns(const gpu_t *gpu, const char *reason);

/* Nanoseconds since its epoch in which nothing ran on it. */
uint64_t gpu_idle_ns(const gpu_t *gpu);

/* The counter behind one NVML_PERF_POLICY_*. */
nvmlReturn_t gpu_violation_ns(const gpu_t *gpu, unsigned int policy, uint64_t *nanoseconds);

/* Links: is it up; a number of it (`gpu.N.link.L.NAME`); how many of all are up and lead to an NVSwitch. */
nvmlReturn_t link_number(const gpu_t *gpu, unsigned int link, const char *name, unsigned int *number);
nvmlReturn_t link_counter(const gpu_t *gpu, unsigned int link, const char *name, uint64_t *count);
nvmlReturn_t switch_links(const gpu_t *gpu, unsigned int *count);

void fill_pci_info(const char *address, nvmlPciInfo_t *info);

#endif
