/*
 * The hardware's state: a text file of `key value` lines, re-read whenever it changes.
 *
 * A value is text; a number; a number over time, `NS:VALUE NS:VALUE ...` (from that CLOCK_BOOTTIME on); or `!CODE`,
 * which makes whoever asks answer that NVML error.  Whoever writes the file replaces it in one step.
 *
 * Everything below is called between call_begin and call_end, under one lock.
 */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stdint.h>

#include "abi.h"

#define MAX_GPUS 64
#define STATE_VARIABLE "NODEGAUGE_SIM_HARDWARE" /* the file's path */
#define GIVEN_VARIABLE "NODEGAUGE_SIM_GPUS"     /* UUIDs of the GPUs that a container was given; absent: all */
#define CLOCK_VARIABLE "NODEGAUGE_SIM_CLOCK"    /* a file of 8 bytes: the nanoseconds of a clock that a test holds */

/* Read the file if it changed.  NVML_ERROR_DRIVER_NOT_LOADED without a file, NVML_ERROR_UNKNOWN for a bad one. */
nvmlReturn_t state_refresh(void);

/* The text under a key; NULL when there is none. */
const char *state_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A value as text.  NVML_ERROR_NOT_SUPPORTED when there is none, or the error it stands for. */
nvmlReturn_t read_text(const char *key, const char **text);

/* A number as it is now. */
nvmlReturn_t read_number(const char *key, int64_t *number);

/* The integral of a number over [from, to] nanoseconds, in units x seconds. */
nvmlReturn_t integrate_number(const char *key, uint64_t from, uint64_t to, double *sum);

/* The pieces of a number over [from, to]: calls back with each piece's value and length in nanoseconds. */
typedef void piece_fn(void *context, int64_t value, uint64_t length);
nvmlReturn_t walk_number(const char *key, uint64_t from, uint64_t to, piece_fn *piece, void *context);

/* CLOCK_BOOTTIME in nanoseconds: runs on through suspend, and is not set back; or the clock that a test holds. */
uint64_t boottime_ns(void);

/* The wall clock in microseconds since 1970, as the machine has it: `clock.step` seconds off ours. */
int64_t wall_clock_us(void);

#endif
