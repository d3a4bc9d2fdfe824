#define _GNU_SOURCE
#include "state.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 512, NAME = 64, COUNTERS = 64, BASE = 10 };
enum { SECOND = 1000000000, MICROSECOND = 1000, MILLISECOND = 1000000 };
enum { SLOW = 300 * MILLISECOND, STUCK_PAUSE = 10 * MILLISECOND, TURNING = 100 * MICROSECOND };
/* A file that is replaced this soon after the last look is seen at the next call after that: no
 * test is so quick, and a look costs more than all the rest of a call. */
enum { LOOK_AGAIN = 10 * MICROSECOND };

/* What a line is about. */
typedef enum { VALUE, DEED, ERROR, AFTER, LATENCY, KINDS } Kind;

typedef struct Entry {
    struct Entry *same; /* the next line of that name */
    struct Entry *last;
    unsigned hash;
    int card, code;
    Kind kind;
    const char *name, *text;
    double real;
    Row row;
} Entry;

typedef struct { char name[NAME]; int card; u64 calls; } Counter;

static struct {
    struct stat seen;
    u64 looked;
    char *content;
    Entry *entries, **slots;
    unsigned mask;
    unsigned of_kind[KINDS], own[KINDS]; /* lines, and those of one card */
} table;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Counter counters[COUNTERS];
static atomic_int references;
static Card cards[CARDS];

static u64 nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (u64)now.tv_sec * SECOND + (u64)now.tv_nsec;
}

u64 microseconds(void) { return nanoseconds(CLOCK_REALTIME) / MICROSECOND; }

void dawdle(u64 time) {
    struct timespec left = {(time_t)(time / SECOND), (long)(time % SECOND)};
    u64 end = nanoseconds(CLOCK_MONOTONIC) + time;
    if (time >= TURNING)
        while (nanosleep(&left, &left)) continue;
    while (nanoseconds(CLOCK_MONOTONIC) < end) continue;
}

void initialized(int by) { atomic_fetch_add(&references, by); }

Card *handle(int card) {
    cards[card].index = card;
    return &cards[card];
}

/* ---- the table ---- */

static unsigned hashed(Kind kind, const char *name, size_t length) {
    unsigned hash = 2166136261u ^ (unsigned)kind;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    return hash;
}

static unsigned slot(unsigned hash, int card) {
    unsigned mixed = hash + (unsigned)(card + 1) * 2654435769u;
    return (mixed ^ mixed >> 15) & table.mask;
}

static Entry *found(Kind kind, int card, unsigned hash, const char *name, size_t length) {
    for (unsigned at = slot(hash, card); table.slots[at]; at = (at + 1) & table.mask) {
        Entry *entry = table.slots[at];
        if (entry->hash == hash && entry->card == card && entry->kind == kind &&
            !strncmp(entry->name, name, length) && !entry->name[length])
            return entry;
    }
    return NULL;
}

/* The first line of that name: the card's own goes before. Under the lock. */
static Entry *find(Kind kind, int card, const char *name, size_t length) {
    Entry *entry = NULL;
    if (!table.of_kind[kind]) return NULL;
    unsigned hash = hashed(kind, name, length);
    if (card != NO_CARD && table.own[kind]) entry = found(kind, card, hash, name, length);
    return entry ? entry : found(kind, NO_CARD, hash, name, length);
}

static void understand(Entry *entry) {
    const char *from = entry->text;
    if (!strcmp(from, "-")) entry->code = NOT_SUPPORTED;
    if (*from == '!') entry->code = atoi(from + 1);
    entry->real = strtod(from, NULL);
    while (entry->row.count < FIELDS) {
        char *rest;
        while (*from == ' ') from++;
        u64 number = strtoull(from, &rest, BASE);
        if (rest == from && *from == '-') {
            number = ~0ULL;
            rest++;
        }
        if (rest == from) break;
        entry->row.field[entry->row.count++] = number;
        from = rest;
    }
}

/* Split `[CARD.][KIND.]NAME` in place. */
static void name(Entry *entry, char *key) {
    static const char *const kinds[KINDS] = {"", "do.", "error.", "after.", "latency."};
    char *rest;
    long card = strtol(key, &rest, BASE);
    entry->card = rest != key && *rest == '.' ? (int)card : NO_CARD;
    if (entry->card != NO_CARD) key = rest + 1;
    for (Kind kind = DEED; kind < KINDS; kind++)
        if (!strncmp(key, kinds[kind], strlen(kinds[kind]))) {
            entry->kind = kind;
            key += strlen(kinds[kind]);
            break;
        }
    entry->name = key;
    entry->hash = hashed(entry->kind, key, strlen(key));
}

static void insert(Entry *entry) {
    unsigned at = slot(entry->hash, entry->card);
    Entry *first = found(entry->kind, entry->card, entry->hash, entry->name, strlen(entry->name));
    table.of_kind[entry->kind]++;
    if (entry->card != NO_CARD) table.own[entry->kind]++;
    entry->last = entry;
    if (first) {
        first->last->same = entry;
        first->last = entry;
        return;
    }
    while (table.slots[at]) at = (at + 1) & table.mask;
    table.slots[at] = entry;
}

static void parse(void) {
    unsigned lines = 0, size = 64;
    for (const char *c = table.content; *c; c++) lines += *c == '\n';
    while (size < 2 * lines + 2) size *= 2;
    free(table.entries);
    free(table.slots);
    memset(table.of_kind, 0, sizeof table.of_kind);
    memset(table.own, 0, sizeof table.own);
    table.entries = calloc(lines + 1, sizeof *table.entries);
    table.slots = calloc(size, sizeof *table.slots);
    table.mask = size - 1;
    Entry *entry = table.entries;
    for (char *rest, *line = strtok_r(table.content, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        char *blank = strchr(line, ' ');
        if (!blank) continue;
        *blank = 0;
        entry->text = blank + 1;
        name(entry, line);
        understand(entry);
        insert(entry++);
    }
    if (!table.of_kind[AFTER]) memset(counters, 0, sizeof counters);
}

static int same(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void load(const char *path) {
    FILE *file = path ? fopen(path, "re") : NULL;
    struct stat now = {0};
    size_t length = 0;
    if (file) fstat(fileno(file), &now);
    free(table.content);
    table.content = calloc((size_t)now.st_size + 2, 1);
    if (file) {
        length = fread(table.content, 1, (size_t)now.st_size, file);
        fclose(file);
    }
    table.content[length] = '\n';
    table.seen = now;
    parse();
}

/* Read the file when it is another than at the last look. Under the lock. */
static void refresh(void) {
    struct stat now = {0};
    u64 time = nanoseconds(CLOCK_MONOTONIC);
    if (table.slots && time - table.looked < LOOK_AGAIN) return;
    table.looked = time;
    const char *path = getenv("FAKE_NVML_FILE");
    if (path && stat(path, &now)) now = (struct stat){0};
    if (!table.slots || !same(&now, &table.seen)) load(path);
}

static void open_table(void) {
    pthread_mutex_lock(&lock);
    refresh();
}

static int close_table(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- values ---- */

/* How long the line's latency says that it takes; 0 without one. Under the lock. */
static u64 latency(int card, const char *key, size_t length) {
    const Entry *entry = find(LATENCY, card, key, length);
    return entry ? (u64)(entry->real * MICROSECOND) : 0;
}

int row(int card, const char *key, unsigned nth, Row *out) {
    size_t length = strlen(key);
    open_table();
    const Entry *entry = find(VALUE, card, key, length);
    u64 time = nth ? 0 : latency(card, key, length);
    while (entry && nth--) entry = entry->same;
    if (entry) *out = entry->row;
    int code = close_table(entry ? entry->code : ABSENT);
    if (time) dawdle(time);
    return code;
}

int number(int card, const char *key, u64 *out) {
    Row found;
    int code = row(card, key, 0, &found);
    if (code == ABSENT || (!code && !found.count)) return NOT_SUPPORTED;
    if (!code) *out = found.field[0];
    return code;
}

int text(int card, const char *key, char *out, unsigned size) {
    open_table();
    const Entry *entry = find(VALUE, card, key, strlen(key));
    if (!entry) return close_table(NOT_SUPPORTED);
    if (entry->code) return close_table(entry->code);
    if (strlen(entry->text) >= size) return close_table(INSUFFICIENT_SIZE);
    strcpy(out, entry->text);
    return close_table(OK);
}

/* ---- deeds ---- */

/* A function by its name in the library, or by the one without version. Under the lock. */
static const Entry *said(Kind kind, int card, const char *function) {
    size_t length = strlen(function);
    const Entry *entry = find(kind, card, function, length);
    int versioned = length > 3 && function[length - 3] == '_' && function[length - 2] == 'v';
    return entry || !versioned ? entry : find(kind, card, function, length - 3);
}

/* Whether this call is beyond those that go well. Counting begins when the line is there. */
static int due(int card, const char *function) {
    const Entry *entry = said(AFTER, card, function);
    if (!entry) return 1;
    for (Counter *one = counters; one < counters + COUNTERS; one++) {
        if (!*one->name) {
            snprintf(one->name, sizeof one->name, "%s", function);
            one->card = card;
        }
        if (one->card == card && !strcmp(one->name, function))
            return ++one->calls > entry->row.field[0];
    }
    return 1;
}

static int still(int card, const char *function, const char *deed) {
    open_table();
    const Entry *entry = said(DEED, card, function);
    return close_table(entry && !strcmp(entry->text, deed));
}

/* The parent of a vfork is in state D until its child is gone. SIGKILL would end it all the same,
 * other than in a driver, so a test sees whether one was sent. */
static void stick(int card, const char *function) {
    if (vfork()) return;
    while (still(card, function, "stuck")) dawdle(STUCK_PAUSE);
    _exit(0);
}

static void act(int card, const char *function, const char *deed) {
    if (!strcmp(deed, "crash")) raise(SIGSEGV);
    if (!strcmp(deed, "slow")) dawdle(SLOW);
    if (!strcmp(deed, "stuck")) stick(card, function);
    while (!strcmp(deed, "hang")) pause();
    if (atoi(deed) > 0) dawdle((u64)atoi(deed) * MILLISECOND);
}

int enter(int card, const char *function) {
    char deed[NAME] = "";
    open_table();
    int now = table.of_kind[AFTER] ? due(card, function) : 1;
    const Entry *error = now ? said(ERROR, card, function) : NULL;
    const Entry *found = now ? said(DEED, card, function) : NULL;
    const Entry *slow = said(LATENCY, card, function);
    u64 time = slow ? (u64)(slow->real * MICROSECOND) : 0;
    if (found) snprintf(deed, sizeof deed, "%s", found->text);
    int code = close_table(error ? (int)error->row.field[0] : OK);
    if (time) dawdle(time);
    if (*deed) act(card, function, deed);
    return code;
}

int about(const Card *card, const char *function) {
    u64 lost;
    if (!atomic_load(&references)) return UNINITIALIZED;
    if (card < cards || card >= cards + CARDS) return INVALID_ARGUMENT;
    int code = enter(card->index, function);
    if (!code && !number(card->index, "lost", &lost)) code = (int)lost;
    return code;
}
