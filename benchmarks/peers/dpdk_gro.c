/* Answers requests (see __init__.py) with DPDK's librte_gro.
 *
 * A mode is two words. The first says which interface merges: `burst` is
 * rte_gro_reassemble_burst, which takes at most 128 packets; `context` is rte_gro_reassemble and
 * rte_gro_timeout_flush, once a batch; `none` is no merging at all. The second says what is done
 * to each packet before that, within the time measured: `bare` nothing, as packet type and header
 * lengths were set beforehand; `parse` finds them with rte_net_get_ptype; `rte` and `ours` parse
 * and then verify the IPv4 and TCP checksums, with the functions of rte_ip.h or with the sum of
 * our own engine. After `none`, `rte` and `ours` verify without parsing: the checksum alone.
 *
 * Merging chains the mbufs and changes headers. After each batch everything is put back, outside
 * of the time measured, and the same batch is used again, so all of it stays in the cache.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ether.h>
#include <rte_gro.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_net.h>
#include <rte_tcp.h>

#include "_wire.h"

#define MAX_PACKETS 4096
#define MAX_SAMPLES 1000000
#define HEADERS 128 /* bytes from the start of a frame that merging may change */
#define WARM 1.0    /* of the time asked for */
#define AWAY 10     /* a batch this many times the shortest one was off the CPU: not counted */

enum api { BURST, CONTEXT, NONE };
enum front { BARE, PARSE, RTE, OURS };

static struct rte_mempool *pool;
static void *context;
static struct rte_gro_param param = {.gro_types = RTE_GRO_TCP_IPV4, .max_item_per_flow = 1};

static unsigned int count;
static struct rte_mbuf *frames[MAX_PACKETS];  /* in order of arrival */
static struct rte_mbuf saved[MAX_PACKETS];    /* as they arrived */
static uint8_t headers[MAX_PACKETS][HEADERS]; /* likewise */
static struct rte_mbuf *batch[MAX_PACKETS];   /* what is handed in, and overwritten */
static struct rte_mbuf *merged[MAX_PACKETS];
static uint64_t samples[MAX_SAMPLES];

static void stop(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "dpdk_gro: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

static uint32_t little32(const uint8_t *bytes) {
    return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* The packets of a file as Ethernet frames in mbufs. */
static void load(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) stop("%s: %s", path, strerror(errno));
    uint8_t word[4];
    if (fread(word, 4, 1, file) != 1) stop("%s is no batch", path);
    for (unsigned int i = 0; i < count; i++) rte_pktmbuf_free(frames[i]);
    count = little32(word);
    if (!count || count > MAX_PACKETS) stop("%u packets in a batch", count);
    static uint32_t lengths[MAX_PACKETS];
    for (unsigned int i = 0; i < count; i++) {
        if (fread(word, 4, 1, file) != 1) stop("%s ends early", path);
        lengths[i] = little32(word);
    }
    if (rte_pktmbuf_alloc_bulk(pool, frames, count)) stop("no mbufs");
    for (unsigned int i = 0; i < count; i++) {
        struct rte_ether_hdr *ethernet = (void *)rte_pktmbuf_append(frames[i], sizeof *ethernet);
        void *packet = rte_pktmbuf_append(frames[i], lengths[i]);
        if (!packet || lengths[i] + sizeof *ethernet < HEADERS) stop("%u bytes", lengths[i]);
        if (fread(packet, lengths[i], 1, file) != 1) stop("%s ends early", path);
        static const struct rte_ether_addr from = {{2, 0, 0, 0, 0, 1}}, to = {{2, 0, 0, 0, 0, 2}};
        ethernet->src_addr = from;
        ethernet->dst_addr = to;
        ethernet->ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4);
    }
    fclose(file);
}

static void parse(struct rte_mbuf *m) {
    struct rte_net_hdr_lens found;
    m->packet_type = rte_net_get_ptype(m, &found, RTE_PTYPE_ALL_MASK);
    m->l2_len = found.l2_len;
    m->l3_len = found.l3_len;
    m->l4_len = found.l4_len;
}

static bool right_rte(const struct rte_mbuf *m) {
    const struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(m, void *, m->l2_len);
    const void *tcp = (const uint8_t *)ip + m->l3_len;
    return rte_ipv4_cksum(ip) == 0 && rte_ipv4_udptcp_cksum_verify(ip, tcp) == 0;
}

static bool right_ours(const struct rte_mbuf *m) {
    const wire_byte *ip = rte_pktmbuf_mtod_offset(m, void *, m->l2_len);
    unsigned int size = wire_u16(ip, 2) - m->l3_len;
    unsigned long long sum = (unsigned long long)wire_u32(ip, 12) + wire_u32(ip, 16);
    if (wire_sum16(ip, 0, m->l3_len) != 0xFFFF) return false;
    sum += wire_u8(ip, 9) + size + wire_sum16(ip, m->l3_len, size);
    return wire_fold(sum) == 0xFFFF;
}

/* Put the batch back as it arrived. */
static void restore(void) {
    for (unsigned int i = 0; i < count; i++) {
        memcpy(frames[i], &saved[i], sizeof saved[i]);
        memcpy(rte_pktmbuf_mtod(frames[i], void *), headers[i], HEADERS);
        batch[i] = frames[i];
    }
}

/* What is measured; how many packets of the batch came out, at `*out`. */
static inline unsigned int work(enum api api, enum front front, struct rte_mbuf ***out) {
    unsigned int wrong = 0;
    if (front != BARE && api != NONE)
        for (unsigned int i = 0; i < count; i++) parse(batch[i]);
    if (front == RTE)
        for (unsigned int i = 0; i < count; i++) wrong += !right_rte(batch[i]);
    if (front == OURS)
        for (unsigned int i = 0; i < count; i++) wrong += !right_ours(batch[i]);
    if (wrong) stop("%u wrong checksums", wrong);
    *out = batch;
    if (api == BURST) return rte_gro_reassemble_burst(batch, count, &param);
    if (api == NONE) return count;
    unsigned int left = rte_gro_reassemble(batch, count, context);
    memcpy(merged, batch, left * sizeof *batch);
    *out = merged;
    return left + rte_gro_timeout_flush(context, 0, param.gro_types, merged + left, count - left);
}

static uint64_t payload_of(const struct rte_mbuf *m) {
    uint64_t bytes = 0;
    for (const struct rte_mbuf *piece = m; piece; piece = piece->next) bytes += piece->data_len;
    const uint8_t *frame = rte_pktmbuf_mtod(m, const uint8_t *);
    unsigned int network = (frame[14] & 15) * 4;
    return bytes - 14 - network - (frame[14 + network + 12] >> 4) * 4;
}

static uint64_t timed(enum api api, enum front front) {
    struct rte_mbuf **out;
    restore();
    uint64_t start = rte_rdtsc_precise();
    work(api, front, &out);
    return rte_rdtsc_precise() - start;
}

/* Cycles that taking the time takes. */
static uint64_t overhead(void) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 1000; i++) {
        uint64_t start = rte_rdtsc_precise(), taken = rte_rdtsc_precise() - start;
        if (taken < least) least = taken;
    }
    return least;
}

/* Nanoseconds a batch: the mean of those during which the thread kept the CPU. */
static double measure(enum api api, enum front front, double seconds) {
    const double hertz = rte_get_tsc_hz();
    const uint64_t own = overhead();
    uint64_t spent = 0, least = UINT64_MAX;
    while (spent < WARM * seconds * hertz) spent += timed(api, front);
    unsigned int taken = 0;
    for (spent = 0; taken < MAX_SAMPLES && (!taken || spent < seconds * hertz); taken++) {
        samples[taken] = timed(api, front) - own;
        spent += samples[taken];
        if (samples[taken] < least) least = samples[taken];
    }
    uint64_t sum = 0;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < taken; i++)
        if (samples[i] <= AWAY * least) {
            sum += samples[i];
            kept++;
        }
    return sum / hertz * 1e9 / kept;
}

static void answer(const char *path, enum api api, enum front front, double seconds) {
    load(path);
    if (api == BURST && count > RTE_GRO_MAX_BURST_ITEM_NUM) stop("%u packets in a burst", count);
    for (unsigned int i = 0; i < count; i++) {
        if (front == BARE || api == NONE) parse(frames[i]);
        saved[i] = *frames[i];
        memcpy(headers[i], rte_pktmbuf_mtod(frames[i], void *), HEADERS);
    }
    param.max_flow_num = count;
    param.socket_id = 0;
    context = rte_gro_ctx_create(&param);
    if (!context) stop("no context");
    struct rte_mbuf **out;
    uint64_t payload = 0;
    restore();
    unsigned int packets = work(api, front, &out);
    for (unsigned int i = 0; i < packets; i++) payload += payload_of(out[i]);
    double nanoseconds = measure(api, front, seconds) / count;
    restore();
    rte_gro_ctx_destroy(context);
    printf("{\"ns\": %.3f, \"out\": %u, \"payload\": %lu}\n", nanoseconds, packets, payload);
    fflush(stdout);
}

static unsigned int which(const char *word, const char *const *words) {
    for (unsigned int i = 0; words[i]; i++)
        if (!strcmp(word, words[i])) return i;
    stop("%s is no part of a mode", word);
    return 0;
}

int main(int argc, char **argv) {
    static const char *const apis[] = {"burst", "context", "none", NULL};
    static const char *const fronts[] = {"bare", "parse", "rte", "ours", NULL};
    static char *options[] = {"dpdk_gro",     "--no-shconf", "--no-huge", "--no-pci", "-m", "64",
                              "--log-level=error", "--no-telemetry"};
    (void)argc;
    options[0] = argv[0];
    if (rte_eal_init(RTE_DIM(options), options) < 0) stop("EAL: %s", rte_strerror(rte_errno));
    pool = rte_pktmbuf_pool_create("batch", MAX_PACKETS, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
    if (!pool) stop("no pool: %s", rte_strerror(rte_errno));
    char line[4096], path[4000], api[16], front[16];
    double seconds;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%3999[^\t]\t%15s %15s\t%lf", path, api, front, &seconds) != 4)
            stop("not understood: %s", line);
        answer(path, which(api, apis), which(front, fronts), seconds);
    }
    return 0;
}
