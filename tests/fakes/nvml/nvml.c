/* A libnvidia-ml.so.1 without a driver: it answers what the file named by FAKE_NVML_FILE says.
 *
 * The file is looked at again at every call, so a test changes the machine while it is read.
 * A line is `KEY VALUE`, or `CARD.KEY VALUE` for one card, which goes before the other:
 *
 *   cards N              number of cards
 *   lost CODE            every call about a card, its handle excepted, returns CODE
 *   error.FUNCTION CODE  the function returns CODE
 *   do.FUNCTION hang     ... or never returns; `slow` takes 300 ms and a number so many;
 *                        `crash` ends in SIGSEGV; `stuck` sleeps in the kernel, in state D,
 *                        until the file says otherwise
 *   after.FUNCTION N     error and deed begin after N more calls
 *   latency.FUNCTION US  ... and every call takes that long; latency.KEY for a value that has
 *                        its own, like latency.field.83
 *   process PID BYTES [GI CI]   a compute process (any number of lines); `-` is "not available";
 *                        `process none` is an empty list where another would hold
 *   event SERIAL CARD XID [GI CI]   an Xid, given once to every event set (events.c)
 *   field.ID[.SCOPE] CODE TYPE VALUE
 *   everything else      the value of that name
 *
 * FUNCTION is the name in the library, or that without its version. A value `-` is NOT_SUPPORTED
 * and `!CODE` is that code; so is a value that is not there. nvml.h has the structures; built with
 * OLD_LIBRARY it lacks what came after R510, with LONG_PROCESSES it is an early R535.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "state.h"

enum { MEMORY_V2 = 2u << 24 | sizeof(MemoryV2), MARGIN_V1 = 1u << 24 | sizeof(Margin) };
enum { FABRIC_V2 = 2u << 24 | 36, FABRIC_V3 = 3u << 24 | sizeof(Fabric) };
enum { KEY = 48, NVLINKS = 18, MIG_SLOTS = 7 };
enum { LEGACY_SKIPS = 4 };       /* the old bus id has a domain of four digits, not eight */

/* A function that tells one number of a card. */
#define NUMBER(function, type, key)                       \
    int function(Card *card, type *out) {                 \
        u64 found = 0;                                    \
        int code = about(card, __func__);                 \
        if (!code) code = number(card->index, key, &found); \
        if (!code) *out = (type)found;                    \
        return code;                                      \
    }

/* A function that tells two numbers. */
#define PAIR(function, key)                                       \
    int function(Card *card, unsigned *first, unsigned *second) { \
        Row found = {0};                                          \
        int code = about(card, __func__);                         \
        if (!code) code = numbers(card->index, key, &found);      \
        if (code) return code;                                    \
        *first = (unsigned)found.field[0];                        \
        *second = (unsigned)found.field[1];                       \
        return OK;                                                \
    }

/* A line of numbers. NOT_SUPPORTED when there is none. */
static int numbers(int card, const char *key, Row *out) {
    int code = row(card, key, 0, out);
    return code == ABSENT ? NOT_SUPPORTED : code;
}

/* `KEY.NUMBER`; printf would cost more than the whole call. */
static char *dotted(char *to, const char *key, unsigned which) {
    char digits[KEY], *digit = digits + sizeof digits - 1;
    *digit = 0;
    do *--digit = (char)('0' + which % 10);
    while (which /= 10);
    to = stpcpy(to, key);
    *to++ = '.';
    return stpcpy(to, digit);
}

/* A number among several of that name. */
static int one_of(int card, const char *key, unsigned which, Row *out) {
    char name[KEY];
    dotted(name, key, which);
    return row(card, name, 0, out);
}

static int init(void) {
    u64 count;
    int code = enter(NO_CARD, "nvmlInit");
    if (!code) code = number(NO_CARD, "cards", &count) ? NOT_LOADED : OK;
    if (!code) initialized(1);
    return code;
}

int nvmlInit_v2(void) { return init(); }
int nvmlInitWithFlags(unsigned flags) { return flags & ~7u ? INVALID_ARGUMENT : init(); }

int nvmlShutdown(void) {
    int code = enter(NO_CARD, __func__);
    if (!code) initialized(-1);
    return code;
}

const char *nvmlErrorString(int code) { return code ? "an error" : "Success"; }

/* ---- the system ---- */

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    int code = enter(NO_CARD, __func__);
    return code ? code : text(NO_CARD, "driver", out, size);
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    u64 found = 0;
    int code = enter(NO_CARD, __func__);
    if (!code) code = number(NO_CARD, "cuda", &found);
    if (!code) *out = (int)found;
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    u64 found = 0;
    int code = enter(NO_CARD, __func__);
    if (!code) code = number(NO_CARD, "cards", &found);
    if (!code) *out = (unsigned)found;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **out) {
    u64 count = 0;
    if (number(NO_CARD, "cards", &count) || index >= count || index >= CARDS)
        return INVALID_ARGUMENT;
    *out = handle((int)index);
    return enter((int)index, __func__);
}

/* ---- who a card is ---- */

int nvmlDeviceGetUUID(Card *card, char *out, unsigned size) {
    int code = about(card, __func__);
    return code ? code : text(card->index, "uuid", out, size);
}

int nvmlDeviceGetName(Card *card, char *out, unsigned size) {
    int code = about(card, __func__);
    return code ? code : text(card->index, "name", out, size);
}

int nvmlDeviceGetPciInfo_v3(Card *card, Pci *out) {
    Row ids = {0};
    int code = about(card, __func__);
    memset(out, 0, sizeof *out);
    if (!code) code = text(card->index, "bus_id", out->bus_id, sizeof out->bus_id);
    if (!code) code = numbers(card->index, "pci_ids", &ids);
    if (code) return code;
    sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->legacy, sizeof out->legacy, "%.15s", out->bus_id + LEGACY_SKIPS);
    out->id = (unsigned)ids.field[0];
    out->subsystem = (unsigned)ids.field[1];
    return OK;
}

/* ---- load, memory, temperature, power, clocks ---- */

int nvmlDeviceGetUtilizationRates(Card *card, Utilization *out) {
    u64 gpu = 0, memory = 0;
    int code = about(card, __func__);
    if (!code) code = number(card->index, "utilization", &gpu);
    if (!code) code = number(card->index, "memory_utilization", &memory);
    if (!code) *out = (Utilization){(unsigned)gpu, (unsigned)memory};
    return code;
}

static int memory(int card, MemoryV2 *out) {
    int code = number(card, "memory_total", &out->total);
    if (!code) code = number(card, "memory_reserved", &out->reserved);
    if (!code) code = number(card, "memory_used", &out->used);
    out->free = out->total - out->reserved - out->used;
    return code;
}

/* Version 1 counts what is reserved as used. */
int nvmlDeviceGetMemoryInfo(Card *card, Memory *out) {
    MemoryV2 found = {0};
    int code = about(card, __func__);
    if (!code) code = memory(card->index, &found);
    if (!code) *out = (Memory){found.total, found.free, found.used + found.reserved};
    return code;
}

int nvmlDeviceGetTemperature(Card *card, unsigned sensor, unsigned *out) {
    u64 found = 0;
    int code = about(card, __func__);
    if (sensor) return INVALID_ARGUMENT;
    if (!code) code = number(card->index, "temperature", &found);
    if (!code) *out = (unsigned)found;
    return code;
}

int nvmlDeviceGetTemperatureThreshold(Card *card, unsigned threshold, unsigned *out) {
    Row found = {0};
    int code = about(card, __func__);
    if (!code) code = one_of(card->index, "threshold", threshold, &found);
    if (!code) *out = (unsigned)found.field[0];
    return code == ABSENT ? INVALID_ARGUMENT : code;
}

NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power_milliwatts")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit_milliwatts")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, "energy_millijoules")
NUMBER(nvmlDeviceGetPerformanceState, unsigned, "performance_state")

static int clock_of(int card, const char *key, unsigned clock, unsigned *out) {
    static const char *const names[] = {"graphics", "sm", "mem", "video"};
    char name[KEY];
    u64 found = 0;
    if (clock >= sizeof names / sizeof *names) return INVALID_ARGUMENT;
    snprintf(name, sizeof name, "%s_%s", key, names[clock]);
    int code = number(card, name, &found);
    if (!code) *out = (unsigned)found;
    return code;
}

int nvmlDeviceGetClockInfo(Card *card, unsigned clock, unsigned *out) {
    int code = about(card, __func__);
    return code ? code : clock_of(card->index, "clock", clock, out);
}

int nvmlDeviceGetMaxClockInfo(Card *card, unsigned clock, unsigned *out) {
    int code = about(card, __func__);
    return code ? code : clock_of(card->index, "clock_max", clock, out);
}

NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "reasons")
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, u64, "reasons_supported")

/* `violation.POLICY [REFERENCE] NANOSECONDS`; without a reference it is now. */
int nvmlDeviceGetViolationStatus(Card *card, unsigned policy, Violation *out) {
    Row found = {0};
    int code = about(card, __func__);
    if (!code) code = one_of(card->index, "violation", policy, &found);
    if (code) return code == ABSENT ? INVALID_ARGUMENT : code;
    *out = found.count > 1 ? (Violation){found.field[0], found.field[1]}
                           : (Violation){microseconds(), found.field[0]};
    return OK;
}

/* ---- fields ---- */

static void fill(int card, Field *out) {
    char name[KEY];
    Row found = {0};
    char *end = dotted(name, "field", out->id);
    dotted(end, "", out->scope);
    int code = row(card, name, 0, &found);
    *end = 0;
    if (code == ABSENT) code = row(card, name, 0, &found);
    if (code == ABSENT) found.field[0] = INVALID_ARGUMENT;
    if (code > 0) found.field[0] = (u64)code;
    out->code = (int)found.field[0];
    out->type = (unsigned)found.field[1];
    out->value.ull = found.field[2];
    if (out->type == DOUBLE) out->value.d = (double)found.field[2];
    if (out->type == SIGNED_INT) out->value.ull = (unsigned)found.field[2];
    out->latency = 0;
    out->timestamp = 0;
    if (out->type || out->code == NOT_SUPPORTED) out->timestamp = (i64)microseconds();
}

int nvmlDeviceGetFieldValues(Card *card, int count, Field *out) {
    int code = about(card, __func__);
    for (int i = 0; !code && i < count; i++) fill(card->index, &out[i]);
    return code;
}

/* ---- MIG, ECC, PCIe, links ---- */

PAIR(nvmlDeviceGetMigMode, "mig_mode")
PAIR(nvmlDeviceGetEccMode, "ecc_mode")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, "mig_slots")

/* `mig_device.SLOT CARD`: the slot's handle is that of another card number. */
int nvmlDeviceGetMigDeviceHandleByIndex(Card *card, unsigned index, Card **out) {
    Row found = {0};
    int code = about(card, __func__);
    if (index >= MIG_SLOTS) return INVALID_ARGUMENT;
    if (!code) code = one_of(card->index, "mig_device", index, &found);
    if (code) return code == ABSENT ? NOT_FOUND : code;
    if (found.field[0] >= CARDS) return INVALID_ARGUMENT;
    *out = handle((int)found.field[0]);
    return OK;
}

int nvmlDeviceGetTotalEccErrors(Card *card, unsigned kind, unsigned counter, u64 *out) {
    static const char *const keys[2][2] = {
        {"ecc_corrected", "ecc_uncorrected"},
        {"ecc_corrected_aggregate", "ecc_uncorrected_aggregate"},
    };
    int code = about(card, __func__);
    if (kind > 1 || counter > 1) return INVALID_ARGUMENT;
    return code ? code : number(card->index, keys[counter][kind], out);
}

int nvmlDeviceGetRemappedRows(Card *card, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    Row found = {0};
    int code = about(card, __func__);
    if (!code) code = numbers(card->index, "remapped_rows", &found);
    if (code) return code;
    *corrected = (unsigned)found.field[0];
    *uncorrected = (unsigned)found.field[1];
    *pending = (unsigned)found.field[2];
    *failed = (unsigned)found.field[3];
    return OK;
}

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_generation_max")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_width_max")
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie_replays")

int nvmlDeviceGetNvLinkState(Card *card, unsigned link, unsigned *out) {
    Row found = {0};
    int code = about(card, __func__);
    if (link >= NVLINKS) return INVALID_ARGUMENT;
    if (!code) code = one_of(card->index, "nvlink", link, &found);
    if (!code) *out = (unsigned)found.field[0];
    return code == ABSENT ? NOT_SUPPORTED : code;
}

#ifndef OLD_LIBRARY

int nvmlDeviceGetMemoryInfo_v2(Card *card, MemoryV2 *out) {
    int code = about(card, __func__);
    if (out->version != MEMORY_V2) return VERSION_MISMATCH;
    return code ? code : memory(card->index, out);
}

int nvmlDeviceGetMarginTemperature(Card *card, Margin *out) {
    u64 found = 0;
    int code = about(card, __func__);
    if (out->version != MARGIN_V1) return VERSION_MISMATCH;
    if (!code) code = number(card->index, "margin_temperature", &found);
    if (!code) out->margin = (int)found;
    return code;
}

NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, "reasons")
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, u64, "reasons_supported")

/* `fabric STATE STATUS CLIQUE HEALTH SUMMARY`. */
int nvmlDeviceGetGpuFabricInfoV(Card *card, Fabric *out) {
    Row found = {0};
    int code = about(card, __func__);
    if (out->version != FABRIC_V2 && out->version != FABRIC_V3) return VERSION_MISMATCH;
    if (!code) code = numbers(card->index, "fabric", &found);
    if (code) return code;
    memset(out->cluster, 0, sizeof out->cluster);
    out->state = (unsigned char)found.field[0];
    out->status = (int)found.field[1];
    out->clique = (unsigned)found.field[2];
    out->health = (unsigned)found.field[3];
    if (out->version == FABRIC_V3) out->summary = (unsigned char)found.field[4];
    return OK;
}

#endif
