#include "histogram.h"

#include <math.h>

static int bucket_of(uint64_t ns) {
    if (ns < STEPS) return (int)ns;
    int shift = 63 - __builtin_clzll(ns) - STEPS_BITS; /* keeps STEPS_BITS bits below the top one */
    return (shift + 1) * STEPS + (int)((ns >> shift) - STEPS);
}

static double middle_ns(int bucket) {
    if (bucket < STEPS) return bucket;
    int shift = bucket / STEPS - 1;
    uint64_t low = (uint64_t)(bucket % STEPS + STEPS) << shift;
    return (double)low + (double)((1ull << shift) - 1) / 2;
}

void histogram_add(Histogram *histogram, int64_t ns) {
    /* A stamp from the future is a fault of the clock or the parser: it must not look fast. The
     * caller counts it as an error; here it is 0. */
    if (ns < 0) ns = 0;
    histogram->buckets[bucket_of((uint64_t)ns)]++;
    histogram->count++;
    histogram->sum_ns += (double)ns;
    if (ns > histogram->max_ns) histogram->max_ns = ns;
}

double histogram_quantile_ns(const Histogram *histogram, double quantile) {
    uint64_t rank = (uint64_t)ceil(quantile * (double)histogram->count);
    uint64_t seen = 0;
    if (rank == 0) rank = 1;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        seen += histogram->buckets[bucket];
        if (seen >= rank) {
            double ns = middle_ns(bucket);
            return ns < (double)histogram->max_ns ? ns : (double)histogram->max_ns;
        }
    }
    return 0;
}

void histogram_print_us(const Histogram *histogram, FILE *out) {
    static const struct {
        const char *name;
        double quantile;
    } shown[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"p99.99", 0.9999}};
    if (!histogram->count) { /* a quantile of nothing is not 0 */
        fputs("null", out);
        return;
    }
    fputc('{', out);
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        fprintf(out, "\"%s\":%.3f,", shown[i].name,
                histogram_quantile_ns(histogram, shown[i].quantile) / 1e3);
    fprintf(out, "\"max\":%.3f,\"mean\":%.3f,\"count\":%llu}", (double)histogram->max_ns / 1e3,
            histogram->sum_ns / (double)histogram->count / 1e3,
            (unsigned long long)histogram->count);
}
