/* Loads, stores, comparisons and the RFC 1071 sum, for the compiled engine.
 *
 * Each function has a twin of the same meaning in wire.py, which the interpreted engine uses and
 * to which tests hold this file equal. Offsets are bytes, multi-byte values are in network byte
 * order, and nothing here checks bounds: the caller has.
 */
#ifndef NETSTACK_GRO_WIRE_H
#define NETSTACK_GRO_WIRE_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef unsigned char wire_byte;

#define WIRE_MASK32 0xFFFFFFFFu

#if defined(__GNUC__) || defined(__clang__)
#define WIRE_UNUSED __attribute__((unused))
#else
#define WIRE_UNUSED
#endif

/* Run-time dispatch of the sum needs ifunc: glibc on x86-64 with a compiler that clones. One
 * source loop in three versions beats hand-written AVX2 here, and a build without any of them
 * still runs everywhere. Sanitizers run before ifunc resolvers may, so they take the plain loop.
 */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(WIRE_PLAIN)
#if __has_attribute(target_clones)
#define WIRE_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#endif
#endif
#ifndef WIRE_CLONES
#define WIRE_CLONES
#endif

static inline int wire_u8(const wire_byte *base, Py_ssize_t at) { return base[at]; }

static inline int wire_u16(const wire_byte *base, Py_ssize_t at) {
    const wire_byte *p = base + at;
    return p[0] << 8 | p[1];
}

static inline unsigned int wire_u32(const wire_byte *base, Py_ssize_t at) {
    const wire_byte *p = base + at;
    return (unsigned int)p[0] << 24 | (unsigned int)p[1] << 16 | (unsigned int)p[2] << 8 | p[3];
}

static inline unsigned long long wire_u64(const wire_byte *base, Py_ssize_t at) {
    return (unsigned long long)wire_u32(base, at) << 32 | wire_u32(base, at + 4);
}

static inline void wire_put_u8(wire_byte *base, Py_ssize_t at, unsigned int value) {
    base[at] = (wire_byte)value;
}

static inline void wire_put_u16(wire_byte *base, Py_ssize_t at, unsigned int value) {
    base[at] = (wire_byte)(value >> 8);
    base[at + 1] = (wire_byte)value;
}

static inline void wire_put_u32(wire_byte *base, Py_ssize_t at, unsigned int value) {
    wire_put_u16(base, at, value >> 16);
    wire_put_u16(base, at + 2, value);
}

static inline void wire_copy(wire_byte *to, Py_ssize_t to_at, const wire_byte *from,
                             Py_ssize_t from_at, Py_ssize_t count) {
    if (count) memcpy(to + to_at, from + from_at, (size_t)count); /* an empty base may be NULL */
}

/* Masked comparisons work on words in memory order; `keep` holds 0xFF for each byte that counts. */
static inline uint64_t wire_load64(const wire_byte *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

static inline uint32_t wire_load32(const wire_byte *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
}

static inline int wire_equal(const wire_byte *a, Py_ssize_t a_at, const wire_byte *b,
                             Py_ssize_t b_at, Py_ssize_t count) {
    const wire_byte *p = a + a_at, *h = b + b_at;
    if (count >= 8 && count <= 16) /* as link headers have: two words that overlap, and no call */
        return !((wire_load64(p) ^ wire_load64(h)) |
                 (wire_load64(p + count - 8) ^ wire_load64(h + count - 8)));
    return !count || memcmp(p, h, (size_t)count) == 0;
}

static inline uint64_t wire_diff64(const wire_byte *p, const wire_byte *h, const char *keep) {
    return (wire_load64(p) ^ wire_load64(h)) & wire_load64((const wire_byte *)keep);
}

/* IPv4 header of 20 bytes, all but total length, ID and header checksum. */
static inline int wire_same_ipv4(const wire_byte *a, Py_ssize_t a_at, const wire_byte *b,
                                 Py_ssize_t b_at) {
    const wire_byte *p = a + a_at, *h = b + b_at;
    return !(wire_diff64(p, h, "\xff\xff\x00\x00\x00\x00\xff\xff") |
             wire_diff64(p + 8, h + 8, "\xff\xff\x00\x00\xff\xff\xff\xff") |
             (wire_load32(p + 16) ^ wire_load32(h + 16)));
}

/* IPv6 header of 40 bytes, all but payload length. */
static inline int wire_same_ipv6(const wire_byte *a, Py_ssize_t a_at, const wire_byte *b,
                                 Py_ssize_t b_at) {
    const wire_byte *p = a + a_at, *h = b + b_at;
    return !(wire_diff64(p, h, "\xff\xff\xff\xff\x00\x00\xff\xff") |
             (wire_load64(p + 8) ^ wire_load64(h + 8)) |
             (wire_load64(p + 16) ^ wire_load64(h + 16)) |
             (wire_load64(p + 24) ^ wire_load64(h + 24)) |
             (wire_load64(p + 32) ^ wire_load64(h + 32)));
}

/* TCP header of `count` bytes (a multiple of 4, at least 20), all but sequence number, FIN, PSH
 * and checksum. */
static inline int wire_same_tcp(const wire_byte *a, Py_ssize_t a_at, const wire_byte *b,
                                Py_ssize_t b_at, Py_ssize_t count) {
    const wire_byte *p = a + a_at, *h = b + b_at;
    uint64_t diff = wire_diff64(p, h, "\xff\xff\xff\xff\x00\x00\x00\x00") |
                    wire_diff64(p + 8, h + 8, "\xff\xff\xff\xff\xff\xf6\xff\xff") |
                    ((wire_load32(p + 16) ^ wire_load32(h + 16)) &
                     wire_load32((const wire_byte *)"\x00\x00\xff\xff"));
    if (count == 32) { /* timestamps, as nearly all have; a loop of so few words costs twice as much */
        diff |= (wire_load64(p + 20) ^ wire_load64(h + 20)) |
                (wire_load32(p + 28) ^ wire_load32(h + 28));
    } else if (count > 20) {
        diff |= (uint64_t)memcmp(p + 20, h + 20, (size_t)count - 20);
    }
    return !diff;
}

/* Fold to 16 bits with end-around carry; 0 only for 0. */
static inline unsigned int wire_fold(unsigned long long sum) {
    sum = (sum & WIRE_MASK32) + (sum >> 32);
    sum = (sum & WIRE_MASK32) + (sum >> 32);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    return (unsigned int)sum;
}

/* The same for a sum of few words, below 2**24. */
static inline unsigned int wire_fold16(unsigned int sum) {
    sum = (sum & 0xFFFF) + (sum >> 16);
    return (sum & 0xFFFF) + (sum >> 16);
}

static inline unsigned int wire_swap16(unsigned int value) {
    return (value & 0xFF) << 8 | value >> 8;
}

WIRE_UNUSED WIRE_CLONES static uint64_t wire_sum_words(const wire_byte *p, size_t words) {
    uint64_t sum = 0;
    for (size_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, p + 4 * i, 4);
        sum += word;
    }
    return sum;
}

/* The same by byte products, a third faster than the widest of those clones: a sum of the bytes at
 * even places and one of those at odd places, each below 2**32 for runs of less than 2**25 bytes. */
#if defined(__x86_64__) && !defined(WIRE_PLAIN) && (__GNUC__ >= 9 || __clang_major__ >= 9)
#include <immintrin.h>
#define WIRE_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define WIRE_VNNI_LIMIT (1 << 25)

/* With `to` the bytes are copied there on the way: reading them twice takes half as long again. */
WIRE_VNNI static inline __attribute__((always_inline)) uint64_t
wire_vnni(const wire_byte *p, size_t count, wire_byte *to) {
    const __m512i even = _mm512_set1_epi16(0x0001), odd = _mm512_set1_epi16(0x0100);
    __m512i e0 = _mm512_setzero_si512(), e1 = e0, o0 = e0, o1 = e0;
    size_t i = 0;
    for (; i + 128 <= count; i += 128) {
        __m512i a = _mm512_loadu_si512(p + i), b = _mm512_loadu_si512(p + i + 64);
        e0 = _mm512_dpbusd_epi32(e0, a, even);
        o0 = _mm512_dpbusd_epi32(o0, a, odd);
        e1 = _mm512_dpbusd_epi32(e1, b, even);
        o1 = _mm512_dpbusd_epi32(o1, b, odd);
        if (to) {
            _mm512_storeu_si512(to + i, a);
            _mm512_storeu_si512(to + i + 64, b);
        }
    }
    for (; i < count; i += 64) {
        size_t left = count - i;
        __mmask64 mask = left < 64 ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0;
        __m512i a = _mm512_maskz_loadu_epi8(mask, p + i);
        e0 = _mm512_dpbusd_epi32(e0, a, even);
        o0 = _mm512_dpbusd_epi32(o0, a, odd);
        if (to) _mm512_mask_storeu_epi8(to + i, mask, a);
    }
    return (uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(e0, e1)) +
           ((uint64_t)(uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(o0, o1)) << 8);
}

WIRE_UNUSED WIRE_VNNI static uint64_t wire_sum_vnni(const wire_byte *p, size_t count) {
    return wire_vnni(p, count, NULL);
}

WIRE_UNUSED WIRE_VNNI static uint64_t wire_copy_sum_vnni(const wire_byte *p, size_t count,
                                                         wire_byte *to) {
    return wire_vnni(p, count, to);
}
#endif

static inline unsigned int wire_network_order(unsigned int folded) {
#if PY_LITTLE_ENDIAN
    folded = wire_swap16(folded);
#endif
    return folded;
}

/* Ones'-complement sum of `count` bytes as 16-bit network-order words, a last odd byte padded
 * with zero (RFC 1071), folded; 0 only when every byte is 0. */
WIRE_UNUSED static unsigned int wire_sum16(const wire_byte *base, Py_ssize_t at,
                                           Py_ssize_t count) {
    const wire_byte *p = base + at;
    uint64_t sum;
#ifdef WIRE_VNNI
    if (count >= 128 && count < WIRE_VNNI_LIMIT && __builtin_cpu_supports("avx512vnni")) {
        sum = wire_sum_vnni(p, (size_t)count);
    } else
#endif
    {
        size_t rest = (size_t)count & 3, whole = (size_t)count - rest;
        sum = wire_sum_words(p, whole / 4);
        if (rest) {
            uint32_t word = 0;
            memcpy(&word, p + whole, rest);
            sum += word;
        }
    }
    return wire_network_order(wire_fold(sum));
}

/* `wire_copy`, and `wire_sum16` of what was copied. */
WIRE_UNUSED static unsigned int wire_copy_sum16(wire_byte *to, Py_ssize_t to_at,
                                                const wire_byte *from, Py_ssize_t from_at,
                                                Py_ssize_t count) {
#ifdef WIRE_VNNI
    if (count >= 128 && count < WIRE_VNNI_LIMIT && __builtin_cpu_supports("avx512vnni")) {
        uint64_t sum = wire_copy_sum_vnni(from + from_at, (size_t)count, to + to_at);
        return wire_network_order(wire_fold(sum));
    }
#endif
    wire_copy(to, to_at, from, from_at, count);
    return wire_sum16(from, from_at, count);
}

/* The sum of the 20 bytes of an IPv4 header without options. */
static inline unsigned int wire_sum20(const wire_byte *base, Py_ssize_t at) {
    const wire_byte *p = base + at;
    uint64_t sum = (uint64_t)wire_load32(p) + wire_load32(p + 4) + wire_load32(p + 8) +
                   wire_load32(p + 12) + wire_load32(p + 16);
    sum = (sum & WIRE_MASK32) + (sum >> 32);
    unsigned int folded = (unsigned int)((sum & 0xFFFF) + (sum >> 16));
    return wire_network_order(wire_fold16(folded));
}

/* Multiply to 128 bits and fold by exclusive or: the mixing step of the flow hash. */
static inline unsigned long long wire_mix(unsigned long long a, unsigned long long b) {
#ifdef __SIZEOF_INT128__
    unsigned __int128 product = (unsigned __int128)a * b;
    return (unsigned long long)product ^ (unsigned long long)(product >> 64);
#else
    uint64_t a0 = a & WIRE_MASK32, a1 = a >> 32, b0 = b & WIRE_MASK32, b1 = b >> 32;
    uint64_t p00 = a0 * b0, p01 = a0 * b1, p10 = a1 * b0, p11 = a1 * b1;
    uint64_t middle = (p00 >> 32) + (p01 & WIRE_MASK32) + (p10 & WIRE_MASK32);
    uint64_t low = (p00 & WIRE_MASK32) | middle << 32;
    uint64_t high = p11 + (p01 >> 32) + (p10 >> 32) + (middle >> 32);
    return low ^ high;
#endif
}

#endif
