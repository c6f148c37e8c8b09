/* What the kernel `burn` of the load probe computes: worked out here a second time, from the PTX that was loaded. */
#ifndef SIM_CUDAMATH_H
#define SIM_CUDAMATH_H

#include <stdint.h>

#define WARP 32

/* A tensor core instruction by its shape; c: registers of the sum in one thread. */
typedef struct {
    const char *name;
    int a, b, c, halves, m, n, k;
} shape_t;

/* The shape that this PTX multiplies with; NULL for a text without a kernel that we know. */
const shape_t *shape_of(const char *ptx);

/* Floating-point operations of one warp in one loop. */
double shape_operations(const shape_t *shape);

/* The results of the 32 threads of a warp. */
void burn_results(const shape_t *shape, const uint32_t *table, uint32_t loops, uint32_t results[WARP]);

#endif
