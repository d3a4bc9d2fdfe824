/* Event sets. An `event SERIAL CARD XID [GI CI]` is given once to every set that its card was
 * registered with before the line was there: the driver keeps nothing for late comers. */
#include <stdlib.h>

#include "state.h"

enum { XID_EVENT = 8, POLL = 5000000, MILLISECOND = 1000 };

typedef struct {
    u64 types[CARDS], since[CARDS]; /* by card: what is wanted, and the serial to begin behind */
    u64 given;
} Set;

static u64 newest(void) {
    Row found;
    u64 serial = 0;
    for (unsigned nth = 0; !row(NO_CARD, "event", nth, &found); nth++)
        if (found.field[0] > serial) serial = found.field[0];
    return serial;
}

int nvmlEventSetCreate(Set **out) {
    int code = enter(NO_CARD, __func__);
    if (!code) *out = calloc(1, sizeof **out);
    return code;
}

int nvmlEventSetFree(Set *set) {
    int code = enter(NO_CARD, __func__);
    if (!code) free(set);
    return code;
}

int nvmlDeviceGetSupportedEventTypes(Card *card, u64 *out) {
    int code = about(card, __func__);
    return code ? code : number(card->index, "event_types", out);
}

int nvmlDeviceRegisterEvents(Card *card, u64 types, Set *set) {
    u64 supported = 0;
    int code = about(card, __func__);
    if (!code) code = number(card->index, "event_types", &supported);
    if (code) return code;
    if (types & ~supported) return NOT_SUPPORTED;
    set->types[card->index] = types;
    set->since[card->index] = newest();
    return OK;
}

/* The oldest event that the set has not had; 0 when there is none. */
static int next(const Set *set, Row *out) {
    Row one;
    int found = 0;
    for (unsigned nth = 0; !row(NO_CARD, "event", nth, &one); nth++) {
        u64 serial = one.field[0], card = one.field[1];
        if (card >= CARDS || !(set->types[card] & XID_EVENT)) continue;
        if (serial <= set->given || serial <= set->since[card]) continue;
        if (found && serial > out->field[0]) continue;
        *out = one;
        found = 1;
    }
    return found;
}

/* What the wait ends with when a registered card is gone; 0 while none is. */
static int lost(const Set *set) {
    u64 code;
    for (int card = 0; card < CARDS; card++)
        if (set->types[card] && !number(card, "lost", &code)) return (int)code;
    return OK;
}

int nvmlEventSetWait_v2(Set *set, Event *out, unsigned timeout) {
    u64 until = microseconds() + (u64)timeout * MILLISECOND;
    int code = enter(NO_CARD, __func__);
    Row found = {0};
    while (!code && !(code = lost(set)) && !next(set, &found)) {
        if (microseconds() >= until) return TIMEOUT;
        dawdle(POLL);
    }
    if (code) return code;
    set->given = found.field[0];
    *out = (Event){handle((int)found.field[1]), XID_EVENT, found.field[2], ~0u, ~0u};
    if (found.count == FIELDS) {
        out->instance = (unsigned)found.field[3];
        out->compute = (unsigned)found.field[4];
    }
    return OK;
}
