/* The yardstick of loading.py: every event of an XSpace and all its statistics into arrays, in one pass, bounds checked.
   It makes no names and no frame: what is left is the cost of the wire format itself. */
#include <stdint.h>
#include <stdlib.h>

typedef const uint8_t *Bytes;
typedef struct { int64_t n, room; int32_t *of, *key; uint8_t *kind; int64_t *value, *more; } Table;
typedef struct { Table events, stats; } Space; /* of an event: line, metadata, -, offset, duration; of a statistic: event, name */

static inline void more(Table *t) {
    if (t->n < t->room) return;
    t->room = t->room ? 2 * t->room : 1 << 20;
    t->of = realloc(t->of, t->room * 4), t->key = realloc(t->key, t->room * 4), t->kind = realloc(t->kind, t->room);
    t->value = realloc(t->value, t->room * 8), t->more = realloc(t->more, t->room * 8);
}

static inline Bytes varint(Bytes at, Bytes end, uint64_t *value) {
    if (at < end && *at < 128) return *value = *at, at + 1; /* most are short */
    uint64_t result = 0;
    for (int shift = 0; at < end && shift < 70; shift += 7) {
        result |= (uint64_t)(*at & 127) << shift;
        if (*at++ < 128) return *value = result, at;
    }
    return NULL;
}

/* The tag and the value at `at` (of a string or message its length) and the position after it, NULL if corrupt. */
static inline Bytes field(Bytes at, Bytes end, uint64_t *tag, uint64_t *value) {
    if (!(at = varint(at, end, tag))) return NULL;
    int wire = *tag & 7, size = wire == 1 ? 8 : 4;
    if (wire == 0) return varint(at, end, value);
    if (wire == 2) return (at = varint(at, end, value)) && *value <= (uint64_t)(end - at) ? at + *value : NULL;
    if ((wire != 1 && wire != 5) || end - at < size) return NULL;
    *value = 0;
    for (int k = 0; k < size; k++) *value |= (uint64_t)at[k] << 8 * k;
    return at + size;
}

#define EACH_FIELD(start, stop) \
    uint64_t tag, value;        \
    for (Bytes at = start; at < stop;) if (!(at = field(at, stop, &tag, &value))) return 0; else

static inline int statistic(Table *t, Bytes start, Bytes stop, Bytes base, int64_t event) {
    uint64_t key = 0, kind = 0, got = 0;
    EACH_FIELD(start, stop) {
        if (tag == 0x08) key = value;
        else kind = tag, got = (tag & 7) == 2 ? (uint64_t)(at - value - base) << 32 | value : value;
    }
    more(t);
    t->of[t->n] = event, t->key[t->n] = key, t->kind[t->n] = kind, t->value[t->n++] = got;
    return 1;
}

static inline int event(Space *s, Bytes start, Bytes stop, Bytes base, int64_t line) {
    uint64_t key = 0, offset = 0, duration = 0;
    EACH_FIELD(start, stop) {
        if (tag == 0x08) key = value;
        else if (tag == 0x10) offset = value;
        else if (tag == 0x18) duration = value;
        else if (tag == 0x22 && !statistic(&s->stats, at - value, at, base, s->events.n)) return 0;
    }
    Table *t = &s->events;
    more(t);
    t->of[t->n] = line, t->key[t->n] = key, t->value[t->n] = offset, t->more[t->n++] = duration;
    return 1;
}

static int inside(Space *s, Bytes start, Bytes stop, Bytes base, int depth) { /* space: 0, plane: 1, line: 2 */
    static int64_t line;
    if (depth != 1) line = depth ? line + 1 : -1;
    EACH_FIELD(start, stop) {
        if (tag != (depth == 0 ? 0x0a : depth == 1 ? 0x1a : 0x22)) continue;
        if (!(depth < 2 ? inside(s, at - value, at, base, depth + 1) : event(s, at - value, at, base, line))) return 0;
    }
    return 1;
}

/* Fill the tables of `s`, which `release` frees; 0 if the bytes are corrupt. */
int decode(Bytes data, int64_t size, Space *s) { return inside(s, data, data + size, data, 0); }

void release(Space *s) {
    for (Table *t = &s->events; t <= &s->stats; t++)
        free(t->of), free(t->key), free(t->kind), free(t->value), free(t->more);
}
