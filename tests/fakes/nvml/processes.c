/* The lists of compute processes, in the layouts that drivers have had. */
#include "state.h"

enum { DETAILS_V1 = 1u << 24 | sizeof(ProcessDetails) };

/* The nth process, or the code that ends the list: OK once there are no more. */
static int process(int card, unsigned nth, LongProcess *out, int *more) {
    Row found = {0};
    int code = row(card, "process", nth, &found);
    *more = !code && found.count;
    if (!*more) return code == ABSENT ? OK : code;
    *out = (LongProcess){(unsigned)found.field[0], ~0ULL, ~0u, ~0u, 0};
    if (found.count > 1) out->used = found.field[1];
    if (found.count > 2) out->instance = (unsigned)found.field[2];
    if (found.count > 3) out->compute = (unsigned)found.field[3];
    return OK;
}

static int all(int card, unsigned *count, Process *rows, LongProcess *long_rows) {
    unsigned room = rows || long_rows ? *count : 0, found = 0;
    LongProcess one;
    int more, code;
    for (;; found++) {
        code = process(card, found, &one, &more);
        if (!more) break;
        if (found >= room) continue;
        if (rows) rows[found] = (Process){one.pid, one.used, one.instance, one.compute};
        if (long_rows) long_rows[found] = one;
    }
    *count = found;
    if (code) return code;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Card *card, unsigned *count, Process *out) {
    int code = about(card, __func__);
    return code ? code : all(card->index, count, out, 0);
}

#ifndef OLD_LIBRARY

#ifdef LONG_PROCESSES
int nvmlDeviceGetComputeRunningProcesses_v3(Card *card, unsigned *count, LongProcess *out) {
    int code = about(card, __func__);
    return code ? code : all(card->index, count, 0, out);
}
#else
int nvmlDeviceGetComputeRunningProcesses_v3(Card *card, unsigned *count, Process *out) {
    int code = about(card, __func__);
    return code ? code : all(card->index, count, out, 0);
}

int nvmlDeviceGetRunningProcessDetailList(Card *card, ProcessDetails *list) {
    int code = about(card, __func__);
    if (list->version != DETAILS_V1) return VERSION_MISMATCH;
    if (list->mode) return NOT_SUPPORTED;
    return code ? code : all(card->index, &list->count, 0, list->rows);
}
#endif

int nvmlDeviceGetConfComputeMemSizeInfo(Card *card, ConfCompute *out) {
    Row found = {0};
    int code = about(card, __func__);
    if (!code) code = row(card->index, "conf_compute_kib", 0, &found);
    if (!code) *out = (ConfCompute){found.field[0], found.field[1]};
    return code == ABSENT ? NOT_SUPPORTED : code;
}

#endif
