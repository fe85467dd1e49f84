/* What the data path needs of libibverbs' stable C interface (IBVERBS_1.1; 64-bit little-endian Linux). The library is
 * the caller's, who passes the functions by address: nothing is linked, and nothing has to be installed to build this.
 * The same structures as numpy records: hostagent/transport/verbs/abi.py. */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define VERBS_GRH_BYTES 40 /* before each UD message; of RoCEv2 over IPv4: 20 unused bytes, then the IP header */
#define VERBS_WC_SUCCESS 0
#define VERBS_SEND_SIGNALED 2
#define VERBS_RDMA_READ 4

/* struct ibv_wc */
struct verbs_completion {
    uint64_t work_id;
    uint32_t status;
    uint32_t opcode;
    uint32_t vendor_error;
    uint32_t bytes;
    uint32_t immediate;
    uint32_t queue_pair;
    uint32_t source_queue_pair;
    uint32_t flags;
    uint64_t rest;
};

/* struct ibv_recv_wr */
struct verbs_receive {
    uint64_t work_id;
    struct verbs_receive *next;
    void *pieces;
    int32_t pieces_count;
};

/* struct ibv_sge */
struct verbs_piece {
    uint64_t address;
    uint32_t bytes;
    uint32_t local_key;
};

/* struct ibv_send_wr, up to what is written here */
struct verbs_send {
    uint64_t work_id;
    struct verbs_send *next;
    void *pieces;
    int32_t pieces_count;
    uint32_t opcode;
    uint32_t flags;
    uint32_t immediate;
    uint64_t remote_address; /* of RDMA; the union has other fields for UD */
    uint32_t remote_key;
    uint8_t rest[76];
};

static_assert(sizeof(struct verbs_completion) == 48 && offsetof(struct verbs_completion, queue_pair) == 28, "ibv_wc");
static_assert(sizeof(struct verbs_receive) == 32, "ibv_recv_wr");
static_assert(sizeof(struct verbs_piece) == 16, "ibv_sge");
static_assert(sizeof(struct verbs_send) == 128 && offsetof(struct verbs_send, flags) == 32 &&
                  offsetof(struct verbs_send, remote_address) == 40 && offsetof(struct verbs_send, remote_key) == 48,
              "ibv_send_wr");

typedef int verbs_poll(void *completion_queue, int room, struct verbs_completion *completions);
typedef int verbs_request_notify(void *completion_queue, int solicited_only);
typedef int verbs_post_receive(void *queue_pair, struct verbs_receive *first, struct verbs_receive **bad);
typedef int verbs_post_send(void *queue_pair, struct verbs_send *first, struct verbs_send **bad);
typedef int verbs_get_event(void *channel, void **completion_queue, void **context);
typedef void verbs_acknowledge(void *completion_queue, unsigned count);
