/*
 * A simulated libcuda: as much of CUDA's driver interface as the load probe uses.
 *
 * Kernels and copies take the time that the machine's state says, results are computed (cudamath), and large memory
 * is never touched.  What a GPU can do: `cuda.gflops` at its loaded clock, `cuda.memory_mbps`, `cuda.h2d_mbps` and
 * `cuda.d2h_mbps` (default: 85 % of its PCIe link), `cuda.sms`, `cuda.uplink` (GPUs with the same number share
 * `cuda.uplink_mbps`).  What goes wrong: `cuda.flips` and `cuda.memory_flips`, wrong results and words of every launch;
 * `cuda.error`, what a launch returns; `cuda.hang`, whether waiting for it never ends; `cuda.late_ms`, how late a
 * starved host is every third time with what an idle stream is to do: a kernel, or copies within the memory.
 *
 * Work is announced in the file STATE.loads, a line per change: `NS UUID PID PERCENT`.  What follows from that for
 * power and heat is testbed.hardware's to say (hardware/loads.py).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "call.h"
#include "cudamath.h"
#include "device.h"

#define LOADS_SUFFIX ".loads"
#define INVALID_VALUE 1
#define OUT_OF_MEMORY 2
#define NO_DEVICE 100
#define INVALID_DEVICE 101
#define INVALID_PTX 218
#define NOT_FOUND 500
#define SMS 75
#define COPYING_PERCENT 10
#define ATTRIBUTE_PROCESSORS 16
#define ATTRIBUTE_MAJOR 75
#define ATTRIBUTE_MINOR 76

typedef struct {
    const char *name;
    const shape_t *shape;
} kernel_t;

/* Its clock is its own: what is queued behind an event begins at that event, however late this machine comes to it.
 * So a busy machine makes no GPU slow. */
typedef struct {
    int gpu, begun;
    enum { IDLE, MARKED, WORKING } state;
    double until;
} stream_t;

typedef struct {
    int gpu;
    double at;
    stream_t *stream;
} event_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int current = -1;
static double copying[MAX_GPUS];
static int announced[MAX_GPUS];
static kernel_t kernels[3 * MAX_GPUS];
static size_t kernel_count;

static void locked(pthread_mutex_t **held) { pthread_mutex_unlock(*held); }

#define CALL()                                                                                                       \
    pthread_mutex_t *held __attribute__((cleanup(locked))) = &lock;                                                  \
    pthread_mutex_lock(held);                                                                                        \
    if (state_refresh() != NVML_SUCCESS)                                                                             \
        return NO_DEVICE

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sleep_until(double moment) {
    const struct timespec t = {(time_t)moment, (long)((moment - (double)(time_t)moment) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
        ;
}

static double number(int gpu, const char *name, int64_t otherwise) {
    return (double)gpu_number_or(gpu_slot(gpu), name, otherwise);
}

static void announce(int gpu, int percent) {
    const char *uuid, *state = getenv(STATE_VARIABLE);
    char path[4096], line[256];
    if (announced[gpu] == percent || !state || gpu_text(gpu_slot(gpu), "uuid", &uuid) != NVML_SUCCESS)
        return;
    announced[gpu] = percent;
    snprintf(path, sizeof path, "%s" LOADS_SUFFIX, state);
    const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    const int size =
        snprintf(line, sizeof line, "%llu %s %d %d\n", (unsigned long long)boottime_ns(), uuid, getpid(), percent);
    if (file < 0 || write(file, line, (size_t)size) != size)
        fprintf(stderr, "simulated CUDA: cannot announce a load in %s\n", path);
    if (file >= 0)
        close(file);
}

int cuInit(unsigned int flags) {
    CALL();
    return flags ? INVALID_VALUE : visible_count() ? 0 : NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
    CALL();
    int64_t cuda;
    *version = read_number("driver.cuda", &cuda) == NVML_SUCCESS ? (int)cuda : 12000;
    return 0;
}

int cuDeviceGetCount(int *count) {
    CALL();
    *count = (int)visible_count();
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    CALL();
    const gpu_t *gpu = ordinal < 0 ? NULL : visible_gpu((unsigned int)ordinal);
    if (!gpu)
        return INVALID_DEVICE;
    *device = gpu->number;
    return 0;
}

int cuDeviceGetUuid(unsigned char *uuid, int device) {
    CALL();
    const char *text;
    if (gpu_text(gpu_slot(device), "uuid", &text) != NVML_SUCCESS)
        return INVALID_DEVICE;
    text += strlen("GPU-");
    for (int i = 0; i < 16; i++, text += 2) {
        unsigned int byte;
        text += *text == '-';
        if (sscanf(text, "%2x", &byte) != 1)
            return INVALID_DEVICE;
        uuid[i] = (unsigned char)byte;
    }
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    CALL();
    const char *name = attribute == ATTRIBUTE_PROCESSORS ? "cuda.sms"
                       : attribute == ATTRIBUTE_MAJOR    ? "compute.major"
                                                         : "compute.minor";
    if (attribute != ATTRIBUTE_PROCESSORS && attribute != ATTRIBUTE_MAJOR && attribute != ATTRIBUTE_MINOR)
        return INVALID_VALUE;
    *value = (int)number(device, name, attribute == ATTRIBUTE_PROCESSORS ? SMS : 0);
    return 0;
}

int cuDevicePrimaryCtxSetFlags(int device, unsigned int flags) {
    (void)device;
    return flags > 0x3f ? INVALID_VALUE : 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = gpu_slot(device);
    return 0;
}

int cuCtxSetCurrent(void *context) {
    current = context ? ((gpu_t *)context)->number : -1;
    return 0;
}

int cuModuleLoadDataEx(void **module, const char *image, unsigned int count, void *options, void **values) {
    (void)count;
    (void)options;
    (void)values;
    *module = (void *)shape_of(image);
    return *module ? 0 : INVALID_PTX;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    static const char *const known[] = {"burn", "fill", "stream"};
    CALL();
    for (size_t i = 0; i < 3; i++)
        if (strcmp(name, known[i]) == 0 && kernel_count < sizeof kernels / sizeof *kernels) {
            kernels[kernel_count] = (kernel_t){known[i], module};
            *function = &kernels[kernel_count++];
            return 0;
        }
    return NOT_FOUND;
}

int cuMemGetInfo_v2(size_t *available, size_t *total) {
    CALL();
    *total = (size_t)number(current, "memory.total", 8ll << 30);
    *available = *total - (size_t)number(current, "memory.used", 0);
    return 0;
}

/* Pages that are never written need no memory. */
static int allocate(void **address, size_t size) {
    *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *address == MAP_FAILED ? OUT_OF_MEMORY : 0;
}

int cuMemAlloc_v2(unsigned long long *address, size_t size) { return allocate((void **)address, size); }

int cuMemHostAlloc(void **address, size_t size, unsigned int flags) {
    return flags > 7 ? INVALID_VALUE : allocate(address, size);
}

int cuMemsetD8_v2(unsigned long long address, unsigned char byte, size_t size) {
    (void)address;
    (void)size;
    return byte ? INVALID_VALUE : 0;
}

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size) {
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) {
    memcpy(to, (const void *)(uintptr_t)from, size);
    return 0;
}

static void queue(stream_t *stream, double seconds, double late_ms) {
    if (stream->state == IDLE && stream->until < now())
        stream->until = now();
    if (late_ms > 0 && stream->state != WORKING && ++stream->begun % 3 == 2)
        stream->until += late_ms / 1e3;
    stream->until += seconds;
    stream->state = WORKING;
}

/* MB/s of a GPU's PCIe link, less what packets cost. */
static double link_mbps(int gpu) {
    static const double lane[] = {0, 250, 500, 985, 1969, 3938, 7563};
    const int64_t generation = (int64_t)number(gpu, "pcie.generation", (int64_t)number(gpu, "pcie.max_generation", 3));
    return 0.85 * lane[generation > 6 ? 6 : generation] *
           number(gpu, "pcie.width", (int64_t)number(gpu, "pcie.max_width", 16));
}

static int copy(stream_t *stream, const char *name, size_t size) {
    const int gpu = stream->gpu;
    double mbps = number(gpu, name, (int64_t)link_mbps(gpu));
    const double uplink = number(gpu, "cuda.uplink", 0);
    int sharers = 1;
    for (int other = 0; other < MAX_GPUS; other++)
        sharers += uplink > 0 && other != gpu && copying[other] > now() && number(other, "cuda.uplink", 0) == uplink;
    const double share = number(gpu, "cuda.uplink_mbps", (int64_t)link_mbps(gpu)) / sharers;
    mbps = uplink > 0 && share < mbps ? share : mbps;
    queue(stream, (double)size / 1e6 / mbps, 0);
    copying[gpu] = stream->until;
    announce(gpu, COPYING_PERCENT);
    return 0;
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, stream_t *stream) {
    (void)to;
    (void)from;
    CALL();
    return copy(stream, "cuda.h2d_mbps", size);
}

int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, stream_t *stream) {
    (void)to;
    (void)from;
    CALL();
    return copy(stream, "cuda.d2h_mbps", size);
}

static double memory_mbps(int gpu) { return number(gpu, "cuda.memory_mbps", 1000000); }

static double late_ms(int gpu) { return number(gpu, "cuda.late_ms", 0); }

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t size, stream_t *stream) {
    (void)to;
    (void)from;
    CALL();
    queue(stream, 2 * (double)size / 1e6 / memory_mbps(stream->gpu), late_ms(stream->gpu));
    return 0;
}

int cuStreamCreate(stream_t **stream, unsigned int flags) {
    if (flags > 1 || !(*stream = calloc(1, sizeof **stream)))
        return INVALID_VALUE;
    (*stream)->gpu = current;
    return 0;
}

int cuStreamSynchronize(stream_t *stream) {
    if (!stream)
        return 0;
    sleep_until(stream->until);
    stream->state = IDLE;
    return 0;
}

int cuEventCreate(event_t **event, unsigned int flags) {
    if (flags > 7 || !(*event = calloc(1, sizeof **event)))
        return INVALID_VALUE;
    (*event)->gpu = current;
    return 0;
}

int cuEventRecord(event_t *event, stream_t *stream) {
    if (stream->state == IDLE && stream->until < now())
        stream->until = now();
    stream->state = stream->state == IDLE ? MARKED : stream->state;
    event->at = stream->until;
    event->stream = stream;
    return 0;
}

static int hangs(int gpu) {
    CALL();
    return number(gpu, "cuda.hang", 0) > 0;
}

int cuEventSynchronize(event_t *event) {
    while (hangs(event->gpu))
        pause();
    sleep_until(event->at);
    if (event->stream && event->at >= event->stream->until)
        event->stream->state = IDLE;
    return 0;
}

int cuEventElapsedTime(float *milliseconds, event_t *from, event_t *to) {
    *milliseconds = (float)((to->at - from->at) * 1000);
    return 0;
}

/* Queue the kernel, and say how many threads are to err. */
static unsigned int begin_burn(stream_t *stream, const shape_t *shape, double loops, unsigned int threads) {
    const int gpu = stream->gpu;
    const double gflops = number(gpu, "cuda.gflops", 50000) * (double)gpu_clock_share(gpu_slot(gpu)) / 1000;
    queue(stream, shape_operations(shape) * threads / WARP * loops / 1e9 / gflops, late_ms(gpu));
    announce(gpu, 100);
    return (unsigned int)number(gpu, "cuda.flips", 0);
}

static void burn(const shape_t *shape, void **arguments, unsigned int threads, unsigned int flips) {
    const uint32_t *table = *(const uint32_t **)arguments[0], loops = *(const uint32_t *)arguments[2];
    uint32_t *results = *(uint32_t **)arguments[1], warp[WARP];
    burn_results(shape, table, loops, warp);
    for (unsigned int thread = 0; thread < threads; thread++)
        results[thread] = warp[thread % WARP];
    for (unsigned int flip = 0; flip < flips && flip < threads; flip++)
        results[threads / 2 + flip] ^= 1u << 12;
}

static int launch(const kernel_t *kernel, unsigned int threads, stream_t *stream, void **arguments,
                  unsigned int *flips) {
    CALL();
    const int error = (int)number(stream->gpu, "cuda.error", 0);
    if (error)
        return error;
    if (strcmp(kernel->name, "burn") == 0) {
        *flips = begin_burn(stream, kernel->shape, *(const uint32_t *)arguments[2], threads);
        return 0;
    }
    const int reads = strcmp(kernel->name, "stream") == 0;
    const double vectors = (double)*(const uint64_t *)arguments[1];
    const double rounds = reads ? *(const uint32_t *)arguments[2] : 1;
    queue(stream, vectors * 16 * rounds / 1e6 / memory_mbps(stream->gpu), late_ms(stream->gpu));
    if (reads)
        **(uint64_t **)arguments[3] += (uint64_t)number(stream->gpu, "cuda.memory_flips", 0);
    return 0;
}

int cuLaunchKernel(const kernel_t *kernel, unsigned int blocks, unsigned int y, unsigned int z, unsigned int threads,
                   unsigned int b, unsigned int c, unsigned int shared, stream_t *stream, void **arguments,
                   void **extra) {
    unsigned int flips = 0;
    if (!kernel->shape || y * z * b * c != 1 || shared || extra || threads > 1024)
        return INVALID_VALUE;
    const int error = launch(kernel, blocks * threads, stream, arguments, &flips);
    /* Without the lock: the other GPUs' kernels do not wait for this one's results. */
    if (!error && strcmp(kernel->name, "burn") == 0)
        burn(kernel->shape, arguments, blocks * threads, flips);
    return error;
}

int cuGetErrorName(int error, const char **text) {
    *text = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : error == INVALID_PTX ? "CUDA_ERROR_INVALID_PTX" : NULL;
    *text = error == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : *text;
    return *text ? 0 : INVALID_VALUE;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == 719 ? "unspecified launch failure" : NULL;
    return *text ? 0 : INVALID_VALUE;
}
