/* What NVIDIA's nvml.h says of the calls that are faked: codes and structures, R510 to R615. */
#pragma once

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    NOT_LOADED = 9,
    TIMEOUT = 10,
    VERSION_MISMATCH = 25,
};

/* nvmlValueType_t */
enum { DOUBLE = 0, UNSIGNED_INT = 1, SIGNED_INT = 5 };

typedef unsigned long long u64;
typedef long long i64;

typedef struct { int index; } Card;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { unsigned version; int margin; } Margin;
typedef struct { u64 reference, violation; } Violation;
typedef struct { u64 protected_kib, unprotected_kib; } ConfCompute;
typedef union { double d; unsigned ui; u64 ull; int si; } Value;
typedef struct { u64 timestamp; Value value; } Sample;

typedef struct {
    unsigned id, scope;
    i64 timestamp, latency;
    unsigned type;
    int code;
    Value value;
} Field;

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

/* Version 2 ends before `summary`. */
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
    unsigned char summary;
} Fabric;

typedef struct { unsigned pid; u64 used; unsigned instance, compute; } Process;
typedef struct { unsigned pid; u64 used; unsigned instance, compute; u64 protected; } LongProcess;
typedef struct { unsigned version, mode, count; LongProcess *rows; } ProcessDetails;
typedef struct { Card *card; u64 type, data; unsigned instance, compute; } Event;
