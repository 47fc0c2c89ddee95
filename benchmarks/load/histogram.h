/* Counts of durations, for quantiles; a bucket is at most 0.8 % wide. */
#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdint.h>
#include <stdio.h>

/* Each power of two is cut into this many buckets; below it every value has its own. */
#define STEPS_BITS 7
#define STEPS (1 << STEPS_BITS)
#define BUCKETS ((64 - STEPS_BITS) * STEPS)

typedef struct {
    uint64_t buckets[BUCKETS];
    uint64_t count;
    int64_t max_ns;
    double sum_ns;
} Histogram;

void histogram_add(Histogram *histogram, int64_t ns);

/* Returns the middle of the bucket that holds the `quantile` (0 to 1), or the exact maximum if
 * that is smaller; 0 when empty. */
double histogram_quantile_ns(const Histogram *histogram, double quantile);

/* Prints {"p50":µs,...,"max":µs,"mean":µs,"count":n}, or null when empty. */
void histogram_print_us(const Histogram *histogram, FILE *out);

#endif
