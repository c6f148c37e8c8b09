/* The state file: loading, looking up, and numbers that change with time.  See state.h. */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#define FIRST_LINE "nodegauge-hardware 1\n"
#define LAST_LINE "\nend\n"

typedef struct {
    char *key, *value;
} entry_t;

static struct {
    char *text;
    entry_t *entries;
    size_t count;
    struct stat seen;
} loaded;

static int by_key(const void *a, const void *b) {
    return strcmp(((const entry_t *)a)->key, ((const entry_t *)b)->key);
}

static void forget(void) {
    free(loaded.text);
    free(loaded.entries);
    memset(&loaded, 0, sizeof loaded);
}

static char *slurp(FILE *file, off_t size) {
    char *text = malloc((size_t)size + 1);
    if (text && fread(text, 1, (size_t)size, file) == (size_t)size) {
        text[size] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

/* Split `text` into entries; 0 for a file that is not a whole state file. */
static int parse(char *text, size_t size) {
    const size_t head = strlen(FIRST_LINE), tail = strlen(LAST_LINE);
    if (size < head + tail || strncmp(text, FIRST_LINE, head) != 0 || strcmp(text + size - tail, LAST_LINE) != 0)
        return 0;
    size_t lines = 0;
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    entry_t *entries = calloc(lines + 1, sizeof *entries);
    if (!entries)
        return 0;
    size_t count = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text + head, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *space = strchr(line, ' ');
        if (!space)
            continue; /* the last line */
        *space = '\0';
        entries[count++] = (entry_t){.key = line, .value = space + 1};
    }
    qsort(entries, count, sizeof *entries, by_key);
    loaded.text = text;
    loaded.entries = entries;
    loaded.count = count;
    return 1;
}

static nvmlReturn_t load(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    struct stat now;
    char *text = fstat(fileno(file), &now) == 0 ? slurp(file, now.st_size) : NULL;
    fclose(file);
    forget();
    if (!text || !parse(text, (size_t)now.st_size)) {
        free(text);
        fprintf(stderr, "simulated NVML: %s is not a hardware state file\n", path);
        return NVML_ERROR_UNKNOWN;
    }
    loaded.seen = now;
    return NVML_SUCCESS;
}

nvmlReturn_t state_refresh(void) {
    const char *path = getenv(STATE_VARIABLE);
    struct stat now;
    if (!path || stat(path, &now) != 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (loaded.text && now.st_ino == loaded.seen.st_ino && now.st_size == loaded.seen.st_size &&
        now.st_mtim.tv_sec == loaded.seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == loaded.seen.st_mtim.tv_nsec)
        return NVML_SUCCESS;
    return load(path);
}

static const char *lookup(const char *key) {
    const entry_t wanted = {.key = (char *)key};
    const entry_t *found = loaded.entries ? bsearch(&wanted, loaded.entries, loaded.count, sizeof wanted, by_key) : NULL;
    return found ? found->value : NULL;
}

const char *state_text(const char *format, ...) {
    char key[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    return lookup(key);
}

nvmlReturn_t read_text(const char *key, const char **text) {
    const char *value = lookup(key);
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    if (*value == '!')
        return (nvmlReturn_t)strtoul(value + 1, NULL, 10);
    *text = value;
    return NVML_SUCCESS;
}

nvmlReturn_t walk_number(const char *key, uint64_t from, uint64_t to, piece_fn *piece, void *context) {
    const char *value;
    nvmlReturn_t code = read_text(key, &value);
    if (code != NVML_SUCCESS)
        return code;
    char *rest;
    int64_t current = strtoll(value, &rest, 10);
    if (*rest != ':') { /* one number for all times */
        if (to > from)
            piece(context, current, to - from);
        return NVML_SUCCESS;
    }
    uint64_t reached = from;
    current = 0; /* before the first point */
    for (const char *point = value; *point && reached < to; point = rest + strspn(rest, " ")) {
        uint64_t since = strtoull(point, &rest, 10);
        int64_t next = *rest == ':' ? strtoll(rest + 1, &rest, 10) : 0;
        uint64_t until = since < to ? since : to;
        if (until > reached) {
            piece(context, current, until - reached);
            reached = until;
        }
        current = next;
    }
    if (to > reached)
        piece(context, current, to - reached);
    return NVML_SUCCESS;
}

static void add_piece(void *context, int64_t value, uint64_t length) {
    *(double *)context += (double)value * ((double)length / 1e9);
}

nvmlReturn_t integrate_number(const char *key, uint64_t from, uint64_t to, double *sum) {
    *sum = 0;
    return walk_number(key, from, to, add_piece, sum);
}

static void last_piece(void *context, int64_t value, uint64_t length) {
    (void)length;
    *(int64_t *)context = value;
}

nvmlReturn_t read_number(const char *key, int64_t *number) {
    uint64_t now = boottime_ns();
    *number = 0;
    return walk_number(key, now, now + 1, last_piece, number);
}

static const volatile uint64_t *held; /* where a test holds the clock */

__attribute__((constructor)) static void find_held_clock(void) {
    const char *path = getenv(CLOCK_VARIABLE);
    const int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *held, PROT_READ, MAP_SHARED, file, 0);
    if (path && page == MAP_FAILED) {
        fprintf(stderr, "simulated NVML: no clock in %s: %s\n", path, strerror(errno));
        abort();
    }
    held = page == MAP_FAILED ? NULL : page;
}

uint64_t boottime_ns(void) {
    struct timespec now;
    if (held)
        return *held;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int64_t wall_clock_us(void) {
    struct timespec now;
    int64_t step = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    read_number("clock.step", &step);
    if (held)
        return step * 1000000 + (int64_t)(*held / 1000);
    return ((int64_t)now.tv_sec + step) * 1000000 + now.tv_nsec / 1000;
}
