/* The buffer of utilization samples. */
#include "state.h"

enum { UTILIZATION_SAMPLES = 1 };
enum { SAMPLE_PERIOD = 166667 }; /* microseconds; "between 1 s and 1/6 s", says nvml.h */

/* `sample TIMESTAMP VALUE` lines, or the last `samples N`, each equal to `utilization`. */
static int sample(int card, unsigned nth, Sample *out) {
    Row found;
    u64 value = 0, count = 0, now = microseconds() / SAMPLE_PERIOD;
    int code = row(card, "sample", nth, &found);
    if (!code) {
        *out = (Sample){found.field[0], {.ull = found.field[1]}};
        return OK;
    }
    if (code != ABSENT || !row(card, "sample", 0, &found)) return NOT_FOUND;
    if (number(card, "samples", &count) || number(card, "utilization", &value)) return NOT_SUPPORTED;
    if (nth >= count) return NOT_FOUND;
    *out = (Sample){(now - (count - 1 - nth)) * SAMPLE_PERIOD, {.ull = value}};
    return OK;
}

int nvmlDeviceGetSamples(Card *card, unsigned kind, u64 since, unsigned *type, unsigned *count,
                         Sample *out) {
    unsigned found = 0;
    int code = about(card, __func__);
    if (code) return code;
    if (kind != UTILIZATION_SAMPLES) return NOT_SUPPORTED;
    *type = UNSIGNED_INT;
    for (unsigned nth = 0;; nth++) {
        Sample one;
        code = sample(card->index, nth, &one);
        if (code) break;
        if (out && one.timestamp <= since) continue;
        if (out && found == *count) return INSUFFICIENT_SIZE;
        if (out) out[found] = one;
        found++;
    }
    *count = found;
    if (code == NOT_SUPPORTED) return code;
    return found ? OK : NOT_FOUND;
}
