# The C side of wire.py: every name here is a C function or constant of _wire.h.
cdef extern from "_wire.h":
    ctypedef unsigned char byte "wire_byte"
    const unsigned int MASK32 "WIRE_MASK32"

    int u8 "wire_u8"(const byte *base, Py_ssize_t at) noexcept
    int u16 "wire_u16"(const byte *base, Py_ssize_t at) noexcept
    unsigned int u32 "wire_u32"(const byte *base, Py_ssize_t at) noexcept
    unsigned long long u64 "wire_u64"(const byte *base, Py_ssize_t at) noexcept
    void put_u8 "wire_put_u8"(byte *base, Py_ssize_t at, unsigned int value) noexcept
    void put_u16 "wire_put_u16"(byte *base, Py_ssize_t at, unsigned int value) noexcept
    void put_u32 "wire_put_u32"(byte *base, Py_ssize_t at, unsigned int value) noexcept
    void copy "wire_copy"(
        byte *to, Py_ssize_t to_at, const byte *source, Py_ssize_t source_at, Py_ssize_t count
    ) noexcept
    bint equal "wire_equal"(
        const byte *a, Py_ssize_t a_at, const byte *b, Py_ssize_t b_at, Py_ssize_t count
    ) noexcept
    bint same_ipv4 "wire_same_ipv4"(
        const byte *a, Py_ssize_t a_at, const byte *b, Py_ssize_t b_at
    ) noexcept
    bint same_ipv6 "wire_same_ipv6"(
        const byte *a, Py_ssize_t a_at, const byte *b, Py_ssize_t b_at
    ) noexcept
    bint same_tcp "wire_same_tcp"(
        const byte *a, Py_ssize_t a_at, const byte *b, Py_ssize_t b_at, Py_ssize_t count
    ) noexcept
    unsigned int fold "wire_fold"(unsigned long long total) noexcept
    unsigned int fold16 "wire_fold16"(unsigned int total) noexcept
    unsigned int swap16 "wire_swap16"(unsigned int value) noexcept
    unsigned int copy_sum16 "wire_copy_sum16"(
        byte *to, Py_ssize_t to_at, const byte *source, Py_ssize_t source_at, Py_ssize_t count
    ) noexcept
    unsigned int sum16 "wire_sum16"(const byte *base, Py_ssize_t at, Py_ssize_t count) noexcept
    unsigned int sum20 "wire_sum20"(const byte *base, Py_ssize_t at) noexcept
    unsigned long long mix "wire_mix"(unsigned long long a, unsigned long long b) noexcept

ctypedef byte *BytePointer
ctypedef const byte *ConstBytePointer
