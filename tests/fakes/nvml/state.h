/* The state file as a table, and what every function does first. */
#pragma once

#include "nvml.h"

enum { NO_CARD = -1, CARDS = 64, FIELDS = 5 };
enum { ABSENT = -1 }; /* no such line */

/* The numbers of one line. `-` between them reads as all ones. */
typedef struct { unsigned count; u64 field[FIELDS]; } Row;

/* The nth line of that name, the card's own before that for all. ABSENT, the code that it stands
 * for (`-` is NOT_SUPPORTED, `!CODE` is that code), or OK. A latency given for the key passes. */
int row(int card, const char *key, unsigned nth, Row *out);

/* The first number of the first such line. NOT_SUPPORTED when there is none. */
int number(int card, const char *key, u64 *out);

/* The line as it is. INSUFFICIENT_SIZE when it does not fit, NOT_SUPPORTED when there is none. */
int text(int card, const char *key, char *out, unsigned size);

/* Hang, dawdle, crash or fail as the file says of this function. */
int enter(int card, const char *function);

/* The same for a function about a card, which may be lost. */
int about(const Card *card, const char *function);

/* The one handle of a card. */
Card *handle(int card);

u64 microseconds(void);

/* Sleeping, or turning where the kernel would sleep far longer. */
void dawdle(u64 nanoseconds);

void initialized(int by);
