/* A libnvidia-ml.so.1 without a driver: it answers what the file named by FAKE_NVML_FILE says.
 *
 * The file is read again at every call, so a test changes the machine while it is looked at.
 * A line is `KEY VALUE`, or `CARD.KEY VALUE` for one card, which goes before the other:
 *
 *   cards N              number of cards
 *   lost CODE            every call about a card, its handle excepted, returns CODE
 *   error.FUNCTION CODE  the function returns CODE
 *   do.FUNCTION hang     ... or never returns; `slow` takes 300 ms; `crash` ends in SIGSEGV;
 *                        `stuck` sleeps in the kernel, in state D, until the file says otherwise
 *   process PID BYTES    a compute process (any number of lines); `-` is "not available"
 *   everything else      the value of that name
 *
 * Signatures and structures: NVIDIA's nvml.h, R510 and later.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NOT_LOADED = 9 };
enum { LINE = 512, CARDS = 64, NO_CARD = -1, SLOW_MICROSECONDS = 300000, STUCK_MICROSECONDS = 10000 };

typedef struct { int index; } Card;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;

static Card cards[CARDS];

/* The value of the nth line that begins with `key` and a blank; 0 when there is none. */
static int line(const char *key, int nth, char value[LINE]) {
    const char *path = getenv("FAKE_NVML_FILE");
    FILE *file = path ? fopen(path, "re") : NULL;
    char text[LINE];
    size_t length = strlen(key);
    int found = 0;
    while (file && !found && fgets(text, sizeof text, file))
        if (!strncmp(text, key, length) && text[length] == ' ' && !nth--) {
            text[strcspn(text, "\n")] = 0;
            strcpy(value, text + length + 1);
            found = 1;
        }
    if (file) fclose(file);
    return found;
}

static int look(int card, const char *key, int nth, char value[LINE]) {
    char own[LINE];
    snprintf(own, sizeof own, "%d.%s", card, key);
    return (card != NO_CARD && line(own, nth, value)) || line(key, nth, value);
}

static unsigned long long number(int card, const char *key) {
    char value[LINE];
    return look(card, key, 0, value) ? strtoull(value, NULL, 10) : 0;
}

/* The parent of a vfork is in state D until its child is gone. SIGKILL would end it all the same,
 * other than in a driver, so a test sees whether one was sent. */
static void stick(int card, const char *key) {
    char value[LINE];
    if (vfork()) return;
    while (look(card, key, 0, value) && !strcmp(value, "stuck")) usleep(STUCK_MICROSECONDS);
    _exit(0);
}

/* What every function does first: hang, dawdle, crash or fail as the file says. */
static int enter(int card, const char *function) {
    char key[LINE], value[LINE];
    snprintf(key, sizeof key, "do.%s", function);
    if (look(card, key, 0, value)) {
        if (!strcmp(value, "crash")) raise(SIGSEGV);
        if (!strcmp(value, "slow")) usleep(SLOW_MICROSECONDS);
        if (!strcmp(value, "stuck")) stick(card, key);
        while (!strcmp(value, "hang")) pause();
    }
    snprintf(key, sizeof key, "error.%s", function);
    if (look(card, key, 0, value)) return atoi(value);
    return OK;
}

static int about(Card *card, const char *function) {
    int code = enter(card->index, function);
    return code ? code : (int)number(card->index, "lost");
}

static int text(int card, const char *key, char *out, unsigned size) {
    char value[LINE] = "";
    look(card, key, 0, value);
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

static int init(void) {
    char value[LINE];
    int code = enter(NO_CARD, "nvmlInit");
    if (code) return code;
    return line("cards", 0, value) ? OK : NOT_LOADED;
}

int nvmlInit_v2(void) { return init(); }
int nvmlInitWithFlags(unsigned flags) { return flags ? INVALID_ARGUMENT : init(); }
int nvmlShutdown(void) { return enter(NO_CARD, "nvmlShutdown"); }
const char *nvmlErrorString(int code) { return code ? "an error" : "Success"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    int code = enter(NO_CARD, "nvmlSystemGetDriverVersion");
    return code ? code : text(NO_CARD, "driver", out, size);
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    int code = enter(NO_CARD, "nvmlSystemGetCudaDriverVersion");
    if (!code) *out = (int)number(NO_CARD, "cuda");
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    int code = enter(NO_CARD, "nvmlDeviceGetCount");
    if (!code) *out = (unsigned)number(NO_CARD, "cards");
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **out) {
    if (index >= number(NO_CARD, "cards") || index >= CARDS) return INVALID_ARGUMENT;
    cards[index].index = (int)index;
    *out = &cards[index];
    return enter((int)index, "nvmlDeviceGetHandleByIndex");
}

int nvmlDeviceGetUUID(Card *card, char *out, unsigned size) {
    int code = about(card, "nvmlDeviceGetUUID");
    return code ? code : text(card->index, "uuid", out, size);
}

int nvmlDeviceGetName(Card *card, char *out, unsigned size) {
    int code = about(card, "nvmlDeviceGetName");
    return code ? code : text(card->index, "name", out, size);
}

int nvmlDeviceGetUtilizationRates(Card *card, Utilization *out) {
    int code = about(card, "nvmlDeviceGetUtilizationRates");
    out->gpu = (unsigned)number(card->index, "utilization");
    out->memory = (unsigned)number(card->index, "memory_utilization");
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(Card *card, Memory *out) {
    int code = about(card, "nvmlDeviceGetMemoryInfo");
    if (out->version != (sizeof *out | 2u << 24)) return INVALID_ARGUMENT;
    out->total = number(card->index, "memory_total");
    out->reserved = number(card->index, "memory_reserved");
    out->used = number(card->index, "memory_used");
    out->free = out->total - out->reserved - out->used;
    return code;
}

int nvmlDeviceGetTemperature(Card *card, unsigned sensor, unsigned *out) {
    int code = about(card, "nvmlDeviceGetTemperature");
    *out = (unsigned)number(card->index, "temperature");
    return sensor ? INVALID_ARGUMENT : code;
}

int nvmlDeviceGetPowerUsage(Card *card, unsigned *out) {
    int code = about(card, "nvmlDeviceGetPowerUsage");
    *out = (unsigned)number(card->index, "power_milliwatts");
    return code;
}

int nvmlDeviceGetClockInfo(Card *card, unsigned clock, unsigned *out) {
    static const char *const names[] = {"clock_graphics", "clock_sm", "clock_mem", "clock_video"};
    int code = about(card, "nvmlDeviceGetClockInfo");
    if (clock >= sizeof names / sizeof *names) return INVALID_ARGUMENT;
    *out = (unsigned)number(card->index, names[clock]);
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Card *card, unsigned *count, Process *out) {
    int code = about(card, "nvmlDeviceGetComputeRunningProcesses");
    unsigned room = *count, found = 0;
    char value[LINE];
    if (code) return code;
    for (; look(card->index, "process", (int)found, value); found++)
        if (found < room && out) {
            char *rest;
            unsigned pid = (unsigned)strtoul(value, &rest, 10);
            int unknown = !strcmp(rest, " -");
            out[found] = (Process){pid, unknown ? ~0ULL : strtoull(rest, NULL, 10), ~0u, ~0u};
        }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}
