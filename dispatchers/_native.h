/* Native-order loads and stores, the layout of message vectors, and the system calls on them.
   The interpreted twin is native.py, which documents them; a test holds the two equal. */
#ifndef NETSTACK_GRO_NATIVE_H
#define NETSTACK_GRO_NATIVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif

#include <Python.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef unsigned char ngn_byte;

static inline unsigned int ngn_u16(const ngn_byte *base, Py_ssize_t at) {
    uint16_t value;
    memcpy(&value, base + at, sizeof value);
    return value;
}

static inline unsigned int ngn_u32(const ngn_byte *base, Py_ssize_t at) {
    uint32_t value;
    memcpy(&value, base + at, sizeof value);
    return value;
}

static inline int ngn_i32(const ngn_byte *base, Py_ssize_t at) {
    int32_t value;
    memcpy(&value, base + at, sizeof value);
    return value;
}

static inline long long ngn_i64(const ngn_byte *base, Py_ssize_t at) {
    int64_t value;
    memcpy(&value, base + at, sizeof value);
    return value;
}

static inline Py_ssize_t ngn_size(const ngn_byte *base, Py_ssize_t at) {
    size_t value;
    memcpy(&value, base + at, sizeof value);
    return (Py_ssize_t)value;
}

static inline void ngn_put16(ngn_byte *base, Py_ssize_t at, unsigned int value) {
    uint16_t stored = (uint16_t)value;
    memcpy(base + at, &stored, sizeof stored);
}

static inline void ngn_put32(ngn_byte *base, Py_ssize_t at, unsigned int value) {
    uint32_t stored = value;
    memcpy(base + at, &stored, sizeof stored);
}

static inline void ngn_put_size(ngn_byte *base, Py_ssize_t at, Py_ssize_t value) {
    size_t stored = (size_t)value;
    memcpy(base + at, &stored, sizeof stored);
}

static inline Py_ssize_t ngn_address(const ngn_byte *base, Py_ssize_t at) {
    return (Py_ssize_t)(uintptr_t)(base + at);
}

static inline Py_ssize_t ngn_cmsg_align(Py_ssize_t length) {
    return (length + (Py_ssize_t)sizeof(size_t) - 1) & ~((Py_ssize_t)sizeof(size_t) - 1);
}

#ifdef __linux__

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    NGN_MMSGHDR = sizeof(struct mmsghdr),
    NGN_MSG_NAME = offsetof(struct mmsghdr, msg_hdr.msg_name),
    NGN_MSG_NAMELEN = offsetof(struct mmsghdr, msg_hdr.msg_namelen),
    NGN_MSG_IOV = offsetof(struct mmsghdr, msg_hdr.msg_iov),
    NGN_MSG_IOVLEN = offsetof(struct mmsghdr, msg_hdr.msg_iovlen),
    NGN_MSG_CONTROL = offsetof(struct mmsghdr, msg_hdr.msg_control),
    NGN_MSG_CONTROLLEN = offsetof(struct mmsghdr, msg_hdr.msg_controllen),
    NGN_MSG_FLAGS = offsetof(struct mmsghdr, msg_hdr.msg_flags),
    NGN_MSG_LEN = offsetof(struct mmsghdr, msg_len),
    NGN_IOVEC = sizeof(struct iovec),
    NGN_IOV_BASE = offsetof(struct iovec, iov_base),
    NGN_IOV_LEN = offsetof(struct iovec, iov_len),
    NGN_CMSGHDR = CMSG_LEN(0),
    NGN_CMSG_LEVEL = offsetof(struct cmsghdr, cmsg_level),
    NGN_CMSG_TYPE = offsetof(struct cmsghdr, cmsg_type)
};

static inline int ngn_recvmmsg(int fd, ngn_byte *base, Py_ssize_t at, int count, int flags) {
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = recvmmsg(fd, (struct mmsghdr *)(void *)(base + at), (unsigned int)count, flags, NULL);
    if (result < 0)
        result = -errno;
    Py_END_ALLOW_THREADS
    return result;
}

static inline int ngn_sendmmsg(int fd, ngn_byte *base, Py_ssize_t at, int count, int flags) {
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = sendmmsg(fd, (struct mmsghdr *)(void *)(base + at), (unsigned int)count, flags);
    if (result < 0)
        result = -errno;
    Py_END_ALLOW_THREADS
    return result;
}

static inline int ngn_read_many(int fd, ngn_byte *base, Py_ssize_t stride, int count,
                                int *lengths) {
    int done = 0;
    Py_BEGIN_ALLOW_THREADS
    while (done < count) {
        ssize_t got = read(fd, base + done * stride, (size_t)stride);
        lengths[done] = got < 0 ? -errno : (int)got;
        if (got <= 0)
            break;
        done++;
    }
    Py_END_ALLOW_THREADS
    return done;
}

#else /* no message vectors: the dispatchers refuse to be made before any of this is used */

enum {
    NGN_MMSGHDR = 64, NGN_MSG_NAME = 0, NGN_MSG_NAMELEN = 8, NGN_MSG_IOV = 16,
    NGN_MSG_IOVLEN = 24, NGN_MSG_CONTROL = 32, NGN_MSG_CONTROLLEN = 40, NGN_MSG_FLAGS = 48,
    NGN_MSG_LEN = 56, NGN_IOVEC = 16, NGN_IOV_BASE = 0, NGN_IOV_LEN = 8, NGN_CMSGHDR = 16,
    NGN_CMSG_LEVEL = 8, NGN_CMSG_TYPE = 12
};

static inline int ngn_recvmmsg(int fd, ngn_byte *base, Py_ssize_t at, int count, int flags) {
    (void)fd, (void)base, (void)at, (void)count, (void)flags;
    return -ENOSYS;
}

static inline int ngn_sendmmsg(int fd, ngn_byte *base, Py_ssize_t at, int count, int flags) {
    (void)fd, (void)base, (void)at, (void)count, (void)flags;
    return -ENOSYS;
}

static inline int ngn_read_many(int fd, ngn_byte *base, Py_ssize_t stride, int count,
                                int *lengths) {
    (void)fd, (void)base, (void)stride, (void)count;
    lengths[0] = -ENOSYS;
    return 0;
}

#endif
#endif
