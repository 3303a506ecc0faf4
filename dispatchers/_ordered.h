/* Loads with acquire and stores with release order, of aligned words in memory that a kernel shares.
   The interpreted twin is ordered.py, which documents them. */
#ifndef NETSTACK_GRO_ORDERED_H
#define NETSTACK_GRO_ORDERED_H

#include <Python.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)

static inline unsigned int ngo_load32(const unsigned char *base, Py_ssize_t at) {
    return __atomic_load_n((const uint32_t *)(const void *)(base + at), __ATOMIC_ACQUIRE);
}

static inline void ngo_store32(unsigned char *base, Py_ssize_t at, unsigned int value) {
    __atomic_store_n((uint32_t *)(void *)(base + at), (uint32_t)value, __ATOMIC_RELEASE);
}

#else /* no system with such memory is built by another compiler */

static inline unsigned int ngo_load32(const unsigned char *base, Py_ssize_t at) {
    return *(const volatile uint32_t *)(const void *)(base + at);
}

static inline void ngo_store32(unsigned char *base, Py_ssize_t at, unsigned int value) {
    *(volatile uint32_t *)(void *)(base + at) = (uint32_t)value;
}

#endif
#endif
