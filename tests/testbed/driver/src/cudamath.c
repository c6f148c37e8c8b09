/*
 * The arithmetic of the kernel `burn`, thread by thread as the instruction set describes it.  See cudamath.h.
 *
 * A tile is spread over a warp: fragment places say which thread holds which element.  The sums go to and fro (the
 * kernel changes A's sign), so two loops make one period, and many loops are one affine map raised to a power.
 */
#include "cudamath.h"

#include <string.h>

#define A_TILES 4
#define B_TILES 8
#define SHIFTS 4
#define MULTIPLIER 1664525u
#define MOST 32

static const shape_t shapes[] = {
    {"m16n8k16", 4, 2, 4, 1, 16, 8, 16},
    {"m16n8k8", 2, 1, 4, 1, 16, 8, 8},
    {"m8n8k4", 2, 2, 8, 1, 32, 8, 4},
    {"fma.rn", 1, 1, 1, 0, 32, 1, 1},
};

const shape_t *shape_of(const char *ptx) {
    if (!strstr(ptx, ".entry burn(") || !strstr(ptx, ".entry stream(") || !strstr(ptx, ".entry fill("))
        return NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strstr(ptx, shapes[i].name))
            return &shapes[i];
    return NULL;
}

double shape_operations(const shape_t *s) { return 2.0 * s->m * s->n * s->k * A_TILES * B_TILES * SHIFTS; }

typedef struct {
    int row, column;
} place_t;

static int octet(int lane) { return lane % 16 / 4 * 8 + lane % 4 + lane / 16 * 4; }

static place_t a_place(const shape_t *s, int lane, int i) {
    if (!s->halves)
        return (place_t){lane, 0};
    if (s->m == 32)
        return (place_t){octet(lane), i};
    return (place_t){lane / 4 + (i / 2 % 2) * 8, lane % 4 * 2 + i % 2 + i / 4 * 8};
}

static place_t b_place(const shape_t *s, int lane, int i) {
    if (!s->halves)
        return (place_t){0, 0};
    if (s->m == 32)
        return (place_t){i, lane % 4 + lane / 16 * 4};
    return (place_t){lane % 4 * 2 + i % 2 + i / 2 * 8, lane / 4};
}

static place_t c_place(const shape_t *s, int lane, int i) {
    if (!s->halves)
        return (place_t){lane, 0};
    if (s->m == 32)
        return (place_t){lane % 16 / 4 * 8 + lane / 16 * 4 + (lane & 1) + (i & 2), (i & 4) + (lane & 2) + (i & 1)};
    return (place_t){lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2};
}

/* A half that is a whole number, as all of ours are. */
static float half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    float value = (float)(exponent ? mantissa | 1024 : mantissa);
    for (int e = exponent ? exponent : 1; e < 25; e++)
        value /= 2;
    for (int e = 25; e < exponent; e++)
        value *= 2;
    return bits >> 15 ? -value : value;
}

static float element(const shape_t *s, const uint32_t *words, int lane, int i) {
    const uint32_t word = words[(s->halves ? i / 2 : i) * WARP + lane];
    float value;
    if (s->halves)
        return half((uint16_t)(i % 2 ? word >> 16 : word));
    memcpy(&value, &word, sizeof value);
    return value;
}

typedef struct {
    uint32_t scale, offset;
} affine_t;

static affine_t then(affine_t first, affine_t second) {
    return (affine_t){first.scale * second.scale, first.offset * second.scale + second.offset};
}

void burn_results(const shape_t *s, const uint32_t *table, uint32_t loops, uint32_t results[WARP]) {
    static const affine_t nothing = {1, 0};
    static _Thread_local float a[A_TILES][MOST][MOST], b[B_TILES][MOST][MOST], c[B_TILES][MOST][MOST];
    const int each = s->halves ? 2 : 1;
    memset(c, 0, sizeof c);
    for (int lane = 0; lane < WARP; lane++) {
        for (int tile = 0; tile < A_TILES; tile++)
            for (int i = 0; i < s->a * each; i++) {
                const place_t p = a_place(s, lane, i);
                a[tile][p.row][p.column] = element(s, table + tile * s->a * WARP, lane, i);
            }
        for (int tile = 0; tile < B_TILES; tile++)
            for (int i = 0; i < s->b * each; i++) {
                const place_t p = b_place(s, lane, i);
                b[tile][p.row][p.column] = element(s, table + (A_TILES * s->a + tile * s->b) * WARP, lane, i);
            }
    }
    for (int i = 0; i < A_TILES; i++)
        for (int r = 0; r < SHIFTS; r++)
            for (int j = 0; j < B_TILES; j++)
                for (int row = 0; row < s->m; row++)
                    for (int column = 0; column < s->n; column++)
                        for (int k = 0; k < s->k; k++)
                            c[j][row][column] += a[i][row][k] * b[(j + r) % B_TILES][k][column];
    for (int lane = 0; lane < WARP; lane++) {
        affine_t odd = nothing, even = nothing;
        for (int j = 0; j < B_TILES; j++)
            for (int i = 0; i < s->c; i++) {
                const place_t p = c_place(s, lane, i);
                uint32_t bits;
                memcpy(&bits, &c[j][p.row][p.column], sizeof bits);
                odd = then(odd, (affine_t){MULTIPLIER, bits});
                even = then(even, (affine_t){MULTIPLIER, 0});
            }
        affine_t step = then(odd, even), all = nothing;
        for (uint32_t n = loops / 2; n; n >>= 1, step = then(step, step))
            if (n & 1)
                all = then(all, step);
        if (loops % 2)
            all = then(all, odd);
        results[lane] = (uint32_t)lane * all.scale + all.offset;
    }
}
