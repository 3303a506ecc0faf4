/* What memory and the CPU allow: memcpy, and the RFC 1071 sum written in several ways.
 *
 * Each function does `repeats` batches in a loop here, so that the call from Python does not count.
 * A batch is `count` pieces of `length` bytes, `stride` bytes from one to the next, and batch after
 * batch is taken from `batches` of them that lie one behind the other.
 */
#include "_wire.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { OURS, CARRY, AVX2, AVX512, VNNI, KINDS };

typedef uint64_t (*summing)(const wire_byte *, size_t);

/* What is left behind the last whole block, as words in memory order. */
static inline uint64_t tail(const wire_byte *p, size_t count) {
    uint64_t sum = 0;
    for (; count >= 4; p += 4, count -= 4) sum += wire_load32(p);
    if (count) {
        uint32_t word = 0;
        memcpy(&word, p, count);
        sum += word;
    }
    return sum;
}

/* 64-bit words, each with the carry of the one before. */
static uint64_t sum_carry(const wire_byte *p, size_t count) {
    uint64_t sum = 0;
    for (; count >= 32; p += 32, count -= 32)
        for (int i = 0; i < 4; i++) {
            uint64_t word = wire_load64(p + 8 * i);
            sum += word;
            sum += sum < word;
        }
    uint64_t rest = tail(p, count);
    sum += rest;
    return sum + (sum < rest);
}

#if defined(__x86_64__)
/* 32-bit words, widened to 64 bits: the even ones by a mask, the odd ones by a shift. */
__attribute__((target("avx2"))) static uint64_t sum_avx2(const wire_byte *p, size_t count) {
    const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
    __m256i even[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i odd[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (; count >= 64; p += 64, count -= 64)
        for (int i = 0; i < 2; i++) {
            __m256i words = _mm256_loadu_si256((const __m256i *)(p + 32 * i));
            even[i] = _mm256_add_epi64(even[i], _mm256_and_si256(words, low));
            odd[i] = _mm256_add_epi64(odd[i], _mm256_srli_epi64(words, 32));
        }
    uint64_t lanes[4];
    even[0] = _mm256_add_epi64(_mm256_add_epi64(even[0], even[1]),
                               _mm256_add_epi64(odd[0], odd[1]));
    _mm256_storeu_si256((__m256i *)lanes, even[0]);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3] + tail(p, count);
}

/* The same with registers twice as wide. */
__attribute__((target("avx512f"))) static uint64_t sum_avx512(const wire_byte *p, size_t count) {
    const __m512i low = _mm512_set1_epi64(0xFFFFFFFF);
    __m512i even[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    __m512i odd[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (; count >= 128; p += 128, count -= 128)
        for (int i = 0; i < 2; i++) {
            __m512i words = _mm512_loadu_si512(p + 64 * i);
            even[i] = _mm512_add_epi64(even[i], _mm512_and_si512(words, low));
            odd[i] = _mm512_add_epi64(odd[i], _mm512_srli_epi64(words, 32));
        }
    even[0] = _mm512_add_epi64(_mm512_add_epi64(even[0], even[1]),
                               _mm512_add_epi64(odd[0], odd[1]));
    return (uint64_t)_mm512_reduce_add_epi64(even[0]) + tail(p, count);
}

/* Bytes in even and in odd places, four to a 32-bit lane by one multiply-and-add. A lane takes
 * 510 a step, so that it holds 4 million of them. */
__attribute__((target("avx512f,avx512bw,avx512vnni"))) static uint64_t
sum_vnni(const wire_byte *p, size_t count) {
    const __m512i one = _mm512_set1_epi32(0x00010001), other = _mm512_set1_epi32(0x01000100);
    __m512i first[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    __m512i second[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (; count >= 128; p += 128, count -= 128)
        for (int i = 0; i < 2; i++) {
            __m512i bytes = _mm512_loadu_si512(p + 64 * i);
            first[i] = _mm512_dpbusd_epi32(first[i], bytes, one);
            second[i] = _mm512_dpbusd_epi32(second[i], bytes, other);
        }
    uint64_t even = (uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(first[0], first[1]));
    uint64_t odd = (uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(second[0], second[1]));
    return even + (odd << 8) + tail(p, count);
}
#endif

static summing function(int kind) {
    switch (kind) {
    case CARRY: return sum_carry;
#if defined(__x86_64__)
    case AVX2: return __builtin_cpu_supports("avx2") ? sum_avx2 : NULL;
    case AVX512: return __builtin_cpu_supports("avx512f") ? sum_avx512 : NULL;
    case VNNI:
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")
                   ? sum_vnni
                   : NULL;
#endif
    default: return NULL;
    }
}

int limits_has(int kind) { return kind == OURS || function(kind) != NULL; }

/* The sum of one piece, folded, its words in network byte order. */
unsigned limits_sum_one(int kind, const wire_byte *base, size_t length) {
    if (kind == OURS) return wire_sum16(base, 0, (Py_ssize_t)length);
    unsigned folded = wire_fold(function(kind)(base, length));
#if PY_LITTLE_ENDIAN
    folded = wire_swap16(folded);
#endif
    return folded;
}

unsigned limits_sum(int kind, const wire_byte *base, size_t stride, size_t length, size_t count,
                    size_t batches, size_t repeats) {
    summing sum = function(kind);
    unsigned found = 0;
    for (size_t i = 0; i < repeats; i++) {
        const wire_byte *p = base + i % batches * count * stride;
        for (size_t k = 0; k < count; k++, p += stride)
            found += kind == OURS ? wire_sum16(p, 0, (Py_ssize_t)length)
                                  : wire_fold(sum(p, length));
        __asm__ volatile("" : "+r"(found) : : "memory");
    }
    return found;
}

void limits_copy(wire_byte *to, const wire_byte *base, size_t stride, size_t length, size_t count,
                 size_t batches, size_t repeats) {
    for (size_t i = 0; i < repeats; i++) {
        const wire_byte *p = base + i % batches * count * stride;
        for (size_t k = 0; k < count; k++) memcpy(to + k * length, p + k * stride, length);
        __asm__ volatile("" : : "r"(to) : "memory");
    }
}
