# The C side of native.py: the same functions over memory, and the C compiler's own layouts.
from netstack_gro.wire cimport byte

ctypedef byte *BytePointer
ctypedef const byte *ConstPointer

cdef extern from "_native.h":
    enum:
        MMSGHDR "NGN_MMSGHDR"
        MSG_NAME "NGN_MSG_NAME"
        MSG_NAMELEN "NGN_MSG_NAMELEN"
        MSG_IOV "NGN_MSG_IOV"
        MSG_IOVLEN "NGN_MSG_IOVLEN"
        MSG_CONTROL "NGN_MSG_CONTROL"
        MSG_CONTROLLEN "NGN_MSG_CONTROLLEN"
        MSG_FLAGS "NGN_MSG_FLAGS"
        MSG_LEN "NGN_MSG_LEN"
        IOVEC "NGN_IOVEC"
        IOV_BASE "NGN_IOV_BASE"
        IOV_LEN "NGN_IOV_LEN"
        CMSGHDR "NGN_CMSGHDR"
        CMSG_LEVEL "NGN_CMSG_LEVEL"
        CMSG_TYPE "NGN_CMSG_TYPE"

    unsigned int u16 "ngn_u16"(const byte *base, Py_ssize_t at) noexcept
    unsigned int u32 "ngn_u32"(const byte *base, Py_ssize_t at) noexcept
    int i32 "ngn_i32"(const byte *base, Py_ssize_t at) noexcept
    long long i64 "ngn_i64"(const byte *base, Py_ssize_t at) noexcept
    Py_ssize_t size "ngn_size"(const byte *base, Py_ssize_t at) noexcept
    void put16 "ngn_put16"(byte *base, Py_ssize_t at, unsigned int value) noexcept
    void put32 "ngn_put32"(byte *base, Py_ssize_t at, unsigned int value) noexcept
    void put_size "ngn_put_size"(byte *base, Py_ssize_t at, Py_ssize_t value) noexcept
    Py_ssize_t address "ngn_address"(const byte *base, Py_ssize_t at) noexcept
    Py_ssize_t cmsg_align "ngn_cmsg_align"(Py_ssize_t length) noexcept
    int recvmmsg "ngn_recvmmsg"(int fd, byte *base, Py_ssize_t at, int count, int flags) noexcept
    int sendmmsg "ngn_sendmmsg"(int fd, byte *base, Py_ssize_t at, int count, int flags) noexcept
    int read_many "ngn_read_many"(
        int fd, byte *base, Py_ssize_t stride, int count, int *lengths) noexcept
