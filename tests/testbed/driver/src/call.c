/* The way into every call.  See call.h. */
#include "call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int clients; /* how often nvmlInit has been called more than nvmlShutdown */

static gpu_t slots[MAX_GPUS];

gpu_t *gpu_slot(int number) {
    slots[number].number = number;
    return &slots[number];
}

/* Whether the process was given this GPU: by its UUID in a list with commas, or for want of a list. */
static int is_given(long number) {
    const char *list = getenv(GIVEN_VARIABLE), *uuid = state_text("gpu.%ld.uuid", number);
    if (!list || !uuid)
        return !list;
    const size_t length = strlen(uuid);
    for (const char *at = list; (at = strstr(at, uuid)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length]))
            return 1;
    return 0;
}

/* `visible`: the numbers of the GPUs that a process can see, in NVML's order; of them, those it was given. */
gpu_t *visible_gpu(unsigned int wanted) {
    const char *list = state_text("visible");
    char *rest = (char *)list;
    unsigned int position = 0;
    while (rest && *rest) {
        long number = strtol(rest, &rest, 10);
        rest += strspn(rest, " ");
        if (number < 0 || number >= MAX_GPUS || !is_given(number))
            continue;
        if (position++ == wanted)
            return gpu_slot((int)number);
    }
    return NULL;
}

unsigned int visible_count(void) {
    unsigned int count = 0;
    while (visible_gpu(count))
        count++;
    return count;
}

static int is_visible(nvmlDevice_t handle) {
    const gpu_t *gpu;
    for (unsigned int i = 0; (gpu = visible_gpu(i)); i++)
        if (gpu == handle)
            return 1;
    return 0;
}

void call_end(call_t *call) {
    if (call->locked)
        pthread_mutex_unlock(&lock);
    call->locked = 0;
}

/* A driver call that never comes back: no lock held, and nothing but the process's end ends it. */
static void hang(call_t *call) {
    call_end(call);
    for (;;)
        pause();
}

/* `hang`, or `!CODE`, under the call's name: for all GPUs, or for one. */
static nvmlReturn_t injected(call_t *call, const char *order) {
    if (!order)
        return NVML_SUCCESS;
    if (strcmp(order, "hang") == 0)
        hang(call);
    return *order == '!' ? (nvmlReturn_t)strtoul(order + 1, NULL, 10) : NVML_ERROR_UNKNOWN;
}

static void take(call_t *call) {
    pthread_mutex_lock(&lock);
    call->locked = 1;
}

nvmlReturn_t call_begin(call_t *call, const char *name) {
    take(call);
    if (!clients)
        return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t code = state_refresh();
    return code == NVML_SUCCESS ? injected(call, state_text("call.%s", name)) : code;
}

nvmlReturn_t call_device(call_t *call, const char *name, nvmlDevice_t handle) {
    nvmlReturn_t code = call_begin(call, name);
    if (code != NVML_SUCCESS)
        return code;
    if (!handle || !is_visible(handle))
        return NVML_ERROR_INVALID_ARGUMENT;
    code = injected(call, state_text("gpu.%d.call.%s", handle->number, name));
    if (code != NVML_SUCCESS)
        return code;
    /* What the handle call would answer now, every call on the handle answers. */
    return injected(call, state_text("gpu.%d.handle", handle->number));
}

nvmlReturn_t call_initialise(const char *name) {
    call_t call __attribute__((cleanup(call_end))) = {0};
    take(&call);
    nvmlReturn_t code = state_refresh();
    if (code == NVML_SUCCESS)
        code = injected(&call, state_text("call.%s", name));
    if (code == NVML_SUCCESS)
        code = injected(&call, state_text("init"));
    if (code == NVML_SUCCESS && clients++ == 0)
        clients_join();
    return code;
}

nvmlReturn_t call_shutdown(void) {
    call_t call __attribute__((cleanup(call_end))) = {0};
    take(&call);
    if (!clients)
        return NVML_ERROR_UNINITIALIZED;
    if (--clients == 0)
        clients_leave();
    return NVML_SUCCESS;
}

nvmlReturn_t call_resume(call_t *call) {
    take(call);
    return clients ? state_refresh() : NVML_ERROR_UNINITIALIZED;
}

static const char *gpu_key(const gpu_t *gpu, const char *name, char *key, size_t size) {
    snprintf(key, size, "gpu.%d.%s", gpu->number, name);
    return key;
}

nvmlReturn_t gpu_text(const gpu_t *gpu, const char *name, const char **text) {
    char key[128];
    return read_text(gpu_key(gpu, name, key, sizeof key), text);
}

nvmlReturn_t gpu_number(const gpu_t *gpu, const char *name, int64_t *number) {
    char key[128];
    return read_number(gpu_key(gpu, name, key, sizeof key), number);
}

int64_t gpu_number_or(const gpu_t *gpu, const char *name, int64_t otherwise) {
    int64_t number;
    return gpu_number(gpu, name, &number) == NVML_SUCCESS ? number : otherwise;
}

nvmlReturn_t gpu_uint(const gpu_t *gpu, const char *name, unsigned int *number) {
    int64_t value;
    if (!number)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = gpu_number(gpu, name, &value);
    if (code == NVML_SUCCESS)
        *number = (unsigned int)value;
    return code;
}

nvmlReturn_t gpu_ull(const gpu_t *gpu, const char *name, unsigned long long *number) {
    int64_t value;
    if (!number)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = gpu_number(gpu, name, &value);
    if (code == NVML_SUCCESS)
        *number = (unsigned long long)value;
    return code;
}

nvmlReturn_t copy_text(const char *text, char *buffer, unsigned int size) {
    if (!buffer)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) + 1 > size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

nvmlReturn_t gpu_copy_text(const gpu_t *gpu, const char *name, char *buffer, unsigned int size) {
    const char *text;
    nvmlReturn_t code = gpu_text(gpu, name, &text);
    return code == NVML_SUCCESS ? copy_text(text, buffer, size) : code;
}
