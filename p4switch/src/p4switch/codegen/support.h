/* Bit moves and wide numbers for generated programs. The compiler copies this text into every C file that it
 * generates. Numbers of up to 64 bits are uint64_t, of up to 128 bits unsigned __int128. Wider numbers are big-endian
 * byte arrays whose unused high bits are zero. A packet is readable for 64 bytes behind its end. */
typedef unsigned __int128 u128;
typedef __int128 i128;

#define PS_ONES64(w) ((w) >= 64 ? ~0ull : (1ull << (w)) - 1)
#define PS_ONES128(w) ((w) >= 128 ? ~(u128)0 : ((u128)1 << (w)) - 1)
#define PS_INDEX(i, n) ((i) < (n) ? (i) : (n))

static inline int64_t ps_sign64(uint64_t v, unsigned w) { return (int64_t)(v << (64 - w)) >> (64 - w); }
static inline i128 ps_sign128(u128 v, unsigned w) { return (i128)(v << (128 - w)) >> (128 - w); }
static inline uint64_t ps_shl64(uint64_t v, uint64_t n) { return n < 64 ? v << n : 0; }
static inline uint64_t ps_shr64(uint64_t v, uint64_t n) { return n < 64 ? v >> n : 0; }
static inline uint64_t ps_sar64(int64_t v, uint64_t n) { return (uint64_t)(v >> (n < 63 ? n : 63)); }
static inline u128 ps_shl128(u128 v, uint64_t n) { return n < 128 ? v << n : 0; }
static inline u128 ps_shr128(u128 v, uint64_t n) { return n < 128 ? v >> n : 0; }
static inline u128 ps_sar128(i128 v, uint64_t n) { return (u128)(v >> (n < 127 ? n : 127)); }
static inline uint64_t ps_div64(uint64_t a, uint64_t b) { return b ? a / b : 0; }
static inline uint64_t ps_mod64(uint64_t a, uint64_t b) { return b ? a % b : 0; }
static inline u128 ps_div128(u128 a, u128 b) { return b ? a / b : 0; }
static inline u128 ps_mod128(u128 a, u128 b) { return b ? a % b : 0; }

/* Saturating arithmetic on w-bit patterns. */
static inline uint64_t ps_sat_addu64(uint64_t a, uint64_t b, unsigned w) {
    u128 s = (u128)a + b;
    return s > PS_ONES64(w) ? PS_ONES64(w) : (uint64_t)s;
}
static inline uint64_t ps_sat_subu64(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static inline uint64_t ps_clamp64(i128 v, unsigned w) {
    i128 high = ((i128)1 << (w - 1)) - 1, low = -high - 1;
    return (uint64_t)(v > high ? high : v < low ? low : v) & PS_ONES64(w);
}
static inline u128 ps_sat_addu128(u128 a, u128 b, unsigned w) {
    u128 s = a + b;
    return s < a || s > PS_ONES128(w) ? PS_ONES128(w) : s;
}
static inline u128 ps_sat_subu128(u128 a, u128 b) { return a > b ? a - b : 0; }
static inline u128 ps_sat_signed128(u128 a, u128 b, unsigned w, int subtract) {
    i128 x = ps_sign128(a, w), y = ps_sign128(b, w), r;
    int over = subtract ? __builtin_sub_overflow(x, y, &r) : __builtin_add_overflow(x, y, &r);
    i128 high = (i128)(PS_ONES128(w) >> 1), low = -high - 1;
    if (over) r = x < 0 ? low : high;
    return (u128)(r > high ? high : r < low ? low : r) & PS_ONES128(w);
}

/* ---------------------------------------------------------------- fields that are no whole bytes */

/* Reads `w` (1..64) bits at bit `shift` (0..7) of p. */
static inline uint64_t ps_bits64(const uint8_t *p, unsigned shift, unsigned w) {
    uint64_t v = ps_load64(p);
    if (shift + w <= 64) return (v << shift) >> (64 - w);
    return ((v << shift) | (p[8] >> (8 - shift))) >> (64 - w);
}
static inline u128 ps_load128(const uint8_t *p) { return (u128)ps_load64(p) << 64 | ps_load64(p + 8); }
static inline u128 ps_bits128(const uint8_t *p, unsigned shift, unsigned w) {
    u128 v = ps_load128(p) << shift;
    if (shift + w > 128) v |= p[16] >> (8 - shift);
    return v >> (128 - w);
}
static inline void ps_store128(uint8_t *p, u128 v, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> (8 * (bytes - 1 - i)));
}
/* Writes `w` bits at bit offset `at` of p, where all bits must be zero. */
static inline void ps_put_bits(uint8_t *p, uint64_t at, const uint8_t *value, unsigned bytes, unsigned w) {
    unsigned skip = bytes * 8 - w;
    for (unsigned i = 0; i < w; i++) {
        unsigned from = skip + i;
        if (value[from / 8] & (0x80u >> (from % 8))) p[(at + i) / 8] |= (uint8_t)(0x80u >> ((at + i) % 8));
    }
}
static inline void ps_put64(uint8_t *p, uint64_t at, uint64_t value, unsigned w) {
    uint8_t b[8];
    ps_store64(b, value);
    ps_put_bits(p, at, b, 8, w);
}
static inline void ps_put128(uint8_t *p, uint64_t at, u128 value, unsigned w) {
    uint8_t b[16];
    ps_store128(b, value, 16);
    ps_put_bits(p, at, b, 16, w);
}
/* Reads `w` bits at bit `shift` of p as a big-endian number of `bytes` bytes. */
static inline void ps_get_bits(uint8_t *out, unsigned bytes, const uint8_t *p, unsigned shift, unsigned w) {
    unsigned skip = bytes * 8 - w;
    memset(out, 0, bytes);
    for (unsigned i = 0; i < w; i++) {
        unsigned from = shift + i, to = skip + i;
        if (p[from / 8] & (0x80u >> (from % 8))) out[to / 8] |= (uint8_t)(0x80u >> (to % 8));
    }
}

/* ---------------------------------------------------------------- numbers wider than 128 bits, big-endian bytes */

static inline void ps_wide_copy(uint8_t *r, unsigned n, const uint8_t *a, unsigned m) {
    if (n <= m) {
        memcpy(r, a + (m - n), n);
    } else {
        memset(r, 0, n - m);
        memcpy(r + (n - m), a, m);
    }
}
static inline void ps_wide_extend(uint8_t *r, unsigned n, const uint8_t *a, unsigned m, unsigned w) {
    /* sign extension of a w-bit number */
    unsigned top = m * 8 - w;
    int negative = (a[top / 8] >> (7 - top % 8)) & 1;
    ps_wide_copy(r, n, a, m);
    if (!negative) return;
    for (unsigned bit = w; bit < n * 8; bit++) r[n - 1 - bit / 8] |= (uint8_t)(1u << (bit % 8));
}
static inline uint64_t ps_wide_low64(const uint8_t *a, unsigned n) {
    (void)n;
    return ps_load64(a + n - 8);
}
static inline u128 ps_wide_low128(const uint8_t *a, unsigned n) { return ps_load128(a + n - 16); }
static inline void ps_wide_from64(uint8_t *r, unsigned n, uint64_t v) {
    memset(r, 0, n - 8);
    ps_store64(r + n - 8, v);
}
static inline void ps_wide_from128(uint8_t *r, unsigned n, u128 v) {
    memset(r, 0, n - 16);
    ps_store64(r + n - 16, (uint64_t)(v >> 64));
    ps_store64(r + n - 8, (uint64_t)v);
}
static inline void ps_wide_mask(uint8_t *r, unsigned n, unsigned w) {
    for (unsigned i = 0; i < n; i++) {
        unsigned above = (n - i) * 8; /* bits from this byte on downwards */
        if (above - 8 >= w)
            r[i] = 0;
        else if (above > w)
            r[i] &= (uint8_t)(0xffu >> (above - w));
    }
}
static inline int ps_wide_negative(const uint8_t *a, unsigned n, unsigned w) {
    unsigned top = n * 8 - w;
    return (a[top / 8] >> (7 - top % 8)) & 1;
}
static inline int ps_wide_add(uint8_t *r, const uint8_t *a, const uint8_t *b, unsigned n, unsigned carry,
                              uint8_t flip) {
    for (unsigned i = n; i-- > 0;) {
        unsigned s = (unsigned)a[i] + (uint8_t)(b[i] ^ flip) + carry;
        r[i] = (uint8_t)s;
        carry = s >> 8;
    }
    return (int)carry;
}
static inline void ps_wide_mul(uint8_t *r, const uint8_t *a, const uint8_t *b, unsigned n) {
    uint8_t out[n];
    memset(out, 0, n);
    for (unsigned i = 0; i < n; i++) {
        unsigned carry = 0, x = a[n - 1 - i];
        if (x == 0) continue;
        for (unsigned j = 0; i + j < n; j++) {
            unsigned s = out[n - 1 - i - j] + x * b[n - 1 - j] + carry;
            out[n - 1 - i - j] = (uint8_t)s;
            carry = s >> 8;
        }
    }
    memcpy(r, out, n);
}
static inline void ps_wide_shl(uint8_t *r, const uint8_t *a, unsigned n, uint64_t s) {
    uint8_t out[n];
    memset(out, 0, n);
    if (s < (uint64_t)n * 8) {
        unsigned bytes = (unsigned)(s / 8), bits = (unsigned)(s % 8);
        for (unsigned i = 0; i + bytes < n; i++) {
            unsigned v = (unsigned)a[i + bytes] << bits;
            if (bits && i + bytes + 1 < n) v |= a[i + bytes + 1] >> (8 - bits);
            out[i] = (uint8_t)v;
        }
    }
    memcpy(r, out, n);
}
static inline void ps_wide_shr(uint8_t *r, const uint8_t *a, unsigned n, uint64_t s, uint8_t fill) {
    uint8_t out[n];
    memset(out, fill, n);
    if (s < (uint64_t)n * 8) {
        unsigned bytes = (unsigned)(s / 8), bits = (unsigned)(s % 8);
        for (unsigned i = bytes; i < n; i++) {
            unsigned v = a[i - bytes] >> bits;
            unsigned above = i > bytes ? a[i - bytes - 1] : fill;
            if (bits) v |= above << (8 - bits);
            out[i] = (uint8_t)v;
        }
    }
    memcpy(r, out, n);
}
static inline int ps_wide_zero(const uint8_t *a, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        if (a[i]) return 0;
    return 1;
}
/* Quotient and remainder, bit by bit. Division by zero gives zero for both. */
static inline void ps_wide_divmod(uint8_t *q, uint8_t *m, const uint8_t *a, const uint8_t *b, unsigned n) {
    uint8_t rest[n + 1], divisor[n + 1], quotient[n];
    memset(rest, 0, n + 1);
    memset(quotient, 0, n);
    divisor[0] = 0;
    memcpy(divisor + 1, b, n);
    if (!ps_wide_zero(b, n)) {
        for (unsigned i = 0; i < n * 8; i++) {
            ps_wide_shl(rest, rest, n + 1, 1);
            rest[n] |= (a[i / 8] >> (7 - i % 8)) & 1;
            if (memcmp(rest, divisor, n + 1) >= 0) {
                ps_wide_add(rest, rest, divisor, n + 1, 1, 0xff);
                quotient[i / 8] |= (uint8_t)(0x80u >> (i % 8));
            }
        }
    }
    memcpy(q, quotient, n);
    memcpy(m, rest + 1, n);
}
/* Compares two w-bit numbers: -1, 0 or 1. */
static inline int ps_wide_compare(const uint8_t *a, const uint8_t *b, unsigned n, unsigned w, int is_signed) {
    int x = is_signed && ps_wide_negative(a, n, w), y = is_signed && ps_wide_negative(b, n, w);
    if (x != y) return x ? -1 : 1;
    int c = memcmp(a, b, n);
    return (c > 0) - (c < 0);
}
static inline void ps_wide_saturate(uint8_t *r, const uint8_t *a, const uint8_t *b, unsigned n, unsigned w,
                                    int subtract, int is_signed) {
    uint8_t x[n + 1], y[n + 1];
    unsigned m = n + 1;
    if (is_signed) {
        ps_wide_extend(x, m, a, n, w);
        ps_wide_extend(y, m, b, n, w);
    } else {
        ps_wide_copy(x, m, a, n);
        ps_wide_copy(y, m, b, n);
    }
    ps_wide_add(x, x, y, m, subtract != 0, subtract ? 0xff : 0);
    int negative = x[0] >> 7;
    uint8_t high[m], low[m];
    memset(high, 0xff, m);
    ps_wide_mask(high, m, is_signed ? w - 1 : w);
    memset(low, 0, m);
    if (is_signed)
        for (unsigned i = 0; i < m; i++) low[i] = (uint8_t)~high[i];
    if (!is_signed && subtract && negative)
        memset(x, 0, m);
    else if (is_signed ? ps_wide_compare(x, high, m, m * 8, 1) > 0 : memcmp(x, high, m) > 0)
        memcpy(x, high, m);
    else if (is_signed && ps_wide_compare(x, low, m, m * 8, 1) < 0)
        memcpy(x, low, m);
    memcpy(r, x + 1, n);
    ps_wide_mask(r, n, w);
}
static inline void ps_wide_insert(uint8_t *r, unsigned n, const uint8_t *v, unsigned m, unsigned low, unsigned w) {
    for (unsigned i = 0; i < w; i++) {
        unsigned from = m * 8 - 1 - i, to = n * 8 - 1 - (low + i);
        uint8_t bit = (uint8_t)(0x80u >> (to % 8));
        if (v[from / 8] & (0x80u >> (from % 8)))
            r[to / 8] |= bit;
        else
            r[to / 8] &= (uint8_t)~bit;
    }
}

/* Operations by value on a wide type of N bytes. */
#define PS_WIDE(N)                                                                                                     \
    typedef struct {                                                                                                   \
        uint8_t b[N];                                                                                                  \
    } W##N;                                                                                                            \
    static inline W##N W##N##_from64(uint64_t v) {                                                                     \
        W##N r;                                                                                                        \
        ps_wide_from64(r.b, N, v);                                                                                     \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_from128(u128 v) {                                                                        \
        W##N r;                                                                                                        \
        ps_wide_from128(r.b, N, v);                                                                                    \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline uint64_t W##N##_low64(W##N a) { return ps_wide_low64(a.b, N); }                                      \
    static inline u128 W##N##_low128(W##N a) { return ps_wide_low128(a.b, N); }                                        \
    static inline W##N W##N##_mask(W##N a, unsigned w) {                                                               \
        ps_wide_mask(a.b, N, w);                                                                                       \
        return a;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_extend(W##N a, unsigned w) {                                                             \
        W##N r;                                                                                                        \
        ps_wide_extend(r.b, N, a.b, N, w);                                                                             \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_add(W##N a, W##N b) {                                                                    \
        ps_wide_add(a.b, a.b, b.b, N, 0, 0);                                                                           \
        return a;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_sub(W##N a, W##N b) {                                                                    \
        ps_wide_add(a.b, a.b, b.b, N, 1, 0xff);                                                                        \
        return a;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_mul(W##N a, W##N b) {                                                                    \
        W##N r;                                                                                                        \
        ps_wide_mul(r.b, a.b, b.b, N);                                                                                 \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_div(W##N a, W##N b) {                                                                    \
        W##N q, m;                                                                                                     \
        ps_wide_divmod(q.b, m.b, a.b, b.b, N);                                                                         \
        return q;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_mod(W##N a, W##N b) {                                                                    \
        W##N q, m;                                                                                                     \
        ps_wide_divmod(q.b, m.b, a.b, b.b, N);                                                                         \
        return m;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_and(W##N a, W##N b) {                                                                    \
        for (unsigned i = 0; i < N; i++) a.b[i] &= b.b[i];                                                             \
        return a;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_or(W##N a, W##N b) {                                                                     \
        for (unsigned i = 0; i < N; i++) a.b[i] |= b.b[i];                                                             \
        return a;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_xor(W##N a, W##N b) {                                                                    \
        for (unsigned i = 0; i < N; i++) a.b[i] ^= b.b[i];                                                             \
        return a;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_not(W##N a) {                                                                            \
        for (unsigned i = 0; i < N; i++) a.b[i] = (uint8_t)~a.b[i];                                                    \
        return a;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_shl(W##N a, uint64_t s) {                                                                \
        W##N r;                                                                                                        \
        ps_wide_shl(r.b, a.b, N, s);                                                                                   \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_shr(W##N a, uint64_t s) {                                                                \
        W##N r;                                                                                                        \
        ps_wide_shr(r.b, a.b, N, s, 0);                                                                                \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline W##N W##N##_sar(W##N a, uint64_t s, unsigned w) {                                                    \
        W##N e, r;                                                                                                     \
        ps_wide_extend(e.b, N, a.b, N, w);                                                                             \
        ps_wide_shr(r.b, e.b, N, s, ps_wide_negative(a.b, N, w) ? 0xff : 0);                                           \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline int W##N##_compare(W##N a, W##N b, unsigned w, int s) { return ps_wide_compare(a.b, b.b, N, w, s); } \
    static inline int W##N##_equal(W##N a, W##N b) { return memcmp(a.b, b.b, N) == 0; }                                \
    static inline W##N W##N##_saturate(W##N a, W##N b, unsigned w, int subtract, int s) {                              \
        W##N r;                                                                                                        \
        ps_wide_saturate(r.b, a.b, b.b, N, w, subtract, s);                                                            \
        return r;                                                                                                      \
    }
#define PS_WIDE_RESIZE(M, N)                    \
    static inline W##N W##M##_to_W##N(W##M a) { \
        W##N r;                                 \
        ps_wide_copy(r.b, N, a.b, M);           \
        return r;                               \
    }

/* ---------------------------------------------------------------- trace: what happened to a packet, line by line */

__attribute__((cold, noinline, format(printf, 2, 3))) static void ps_trace(struct ps_ctx *ctx, const char *form, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, form);
    int length = vsnprintf(text, sizeof text, form, arguments);
    va_end(arguments);
    ctx->api->log(ctx, PS_LOG_TRACE, text, length < (int)sizeof text ? (size_t)length : sizeof text - 1);
}
/* log_msg: the text with its values, in order, in place of "{}". */
__attribute__((cold, noinline)) static void ps_log(struct ps_ctx *ctx, const char *form, size_t length,
                                                   const uint64_t *values, size_t count) {
    char text[4096];
    size_t at = 0, next = 0;
    for (size_t i = 0; i < length && at + 24 < sizeof text; i++) {
        if (next < count && form[i] == '{' && i + 1 < length && form[i + 1] == '}') {
            at += (size_t)snprintf(text + at, sizeof text - at, "%llu", (unsigned long long)values[next++]);
            i++;
        } else {
            text[at++] = form[i];
        }
    }
    ctx->api->log(ctx, PS_LOG_MSG, text, at);
}
/* Appends "name=0x12 name=0x34" to a text with `room` bytes. Returns its new length. */
__attribute__((cold, noinline)) static size_t ps_trace_fields(char *text, size_t at, size_t room, const char *between,
                                                              const struct ps_field_desc *fields, uint32_t count,
                                                              const uint8_t *packed) {
    for (uint32_t i = 0; i < count && at + 8 < room; i++) {
        const struct ps_field_desc *f = &fields[i];
        size_t size = (f->width + 7) / 8;
        int length = snprintf(text + at, room - at, "%s%s=0x", i ? between : "", f->name);
        at = length < (int)(room - at) ? at + (size_t)length : room - 1;
        int started = 0;
        for (size_t k = 0; k < size && at + 3 < room; k++) {
            uint8_t octet = packed[f->offset + (f->order == PS_NATIVE ? size - 1 - k : k)];
            if (octet == 0 && !started && k + 1 < size) continue;
            at += (size_t)snprintf(text + at, room - at, started ? "%02x" : "%x", octet);
            started = 1;
        }
    }
    return at;
}
__attribute__((cold, noinline)) static void ps_trace_table(struct ps_ctx *ctx, const struct ps_table *table,
                                                           const uint8_t *key, int hit,
                                                           const struct ps_action_desc *actions,
                                                           const struct ps_action *action) {
    char keys[512] = "", arguments[384] = "";
    const struct ps_action_desc *chosen = action->index == PS_NO_ACTION ? NULL : &actions[action->index];
    ps_trace_fields(keys, 0, sizeof keys, " ", table->desc->keys, table->desc->key_count, key);
    if (chosen)
        ps_trace_fields(arguments, 0, sizeof arguments, ", ", chosen->params, chosen->param_count, action->params);
    ps_trace(ctx, "table %s: %s%s%s, action %s(%s)", table->desc->name, keys, keys[0] ? " " : "", hit ? "hit" : "miss",
             chosen ? chosen->name : "none", arguments);
}

/* The first eight bytes as a number: HashAlgorithm.identity. */
static inline uint64_t ps_identity(const uint8_t *bytes, size_t length) {
    uint64_t v = 0;
    for (size_t i = 0; i < length && i < 8; i++) v = v << 8 | bytes[i];
    return v;
}
