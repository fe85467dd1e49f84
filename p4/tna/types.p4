// Headers and metadata that pass between the controls on Tofino.

#ifndef KVCAST_TNA_TYPES_P4
#define KVCAST_TNA_TYPES_P4

typedef bit<32> tick_t;                         // 2^16 ns
typedef bit<INTEREST_INDEX_BITS> interest_index_t;
typedef bit<HEAT_INDEX_BITS>     heat_index_t;
typedef bit<16> slot_index_t;

// All ports. The id that neither kind of bitmap group needs: of the sets of 16 it is that of member 15 alone, which
// the controller sends to a bigger group and egress prunes; of pairs of sets of 15 it is the empty second one.
// p4switch floods to it by itself (kvcast.p4 says so at `main`) until a controller writes it.
#define FLOOD_GROUP 0x8000
const group_t GROUP_FLOOD = FLOOD_GROUP;

// The mirror session that sends a FILL, JOIN or LEAVE, cut to its control header, to the recirculation port.
const MirrorId_t   SESSION_HEAD = 500;
const MirrorType_t MIRROR_HEAD = 1;

// Operation of the head of a LEAVE, on its round. No host can send it: rounds begin in the switch.
const bit<8> OP_CREDIT = 0x80;

// Control datagrams that go round do not wait behind the segments that circulate: they have a queue of their own at the
// recirculation port. Mirrored ones take that of the session, its class of service.
const QueueId_t QUEUE_CONTROL = 1;

const DigestType_t DIGEST_HEAT = 1;
const DigestType_t DIGEST_LOST = 2;
const DigestType_t DIGEST_SIGHTING = 3;

// What goes from ingress to egress in front of every packet; the first byte tells which.
const bit<8> TAG_BRIDGE = 1;
const bit<8> TAG_MIRROR = 2;

// Frames on the wire, with their FCS.
const bit<16> FCS_BYTES = 4;
const bit<16> DATA_FRAME_BYTES = (bit<16>) ETHERNET_BYTES + IPV4_BYTES + DATA_UDP_BYTES + FCS_BYTES;
const bit<16> FILL_FRAME_BYTES = (bit<16>) ETHERNET_BYTES + IPV4_BYTES + FILL_UDP_BYTES + FCS_BYTES;

header bridge_t {
    bit<8>    tag;
    bit<1>    cast;
    bit<1>    flooded;
    bit<5>    pad;
    port_t    port;                             // where the packet arrived
    bit<16>   needed;                           // bytes that the frame must have had when it arrived
    members_t deliver;
}

header mirror_t {
    bit<8>   tag;
    member_t member;
    bit<16>  port;
}

struct headers_t {
    bridge_t     bridge;
    mirror_t     mirror;
    ethernet_t   ethernet;
    vlan_t[2]    vlan;
    arp_t        arp;
    ipv4_t       ipv4;
    ip_option_t[10] option;
    udp_t        udp;
    kv_control_t kvc;
    bth_t        bth;
    deth_t       deth;
    kv_data_t    kvd;
}

// What a stateful ALU says of an entry that one signature owns since some time: this.predicate(mine, recent).
typedef bit<8> ownership_t;
const ownership_t NEITHER = 1;                  // another's, and its time is over: free
const ownership_t MINE_STALE = 2;
const ownership_t ANOTHERS = 4;
const ownership_t MINE = 8;                     // mine and recent

// And of one that only has a time: this.predicate(recent).
const ownership_t NOT_RECENT = 1;

// Of a budget: this.predicate(in its window, used up).
const ownership_t OVER = 8;

// Of a sponsor: this.predicate(it is nobody's, or it is the sender who leaves).
const ownership_t CHANGES = 2;

struct owned_t {
    signature_t signature;
    tick_t      stamp;
}

// What happened to a packet that has to do with the orbit; index into its counter.
enum bit<8> OrbitEvent {
    NONE     = 0,
    ENTERED  = 1,                               // FILL of a segment that did not circulate
    REPEATED = 2,                               // FILL of one that does: acknowledged, nothing else
    PASSED   = 3,                               // came by, nobody waits
    CAST     = 4,                               // came by and was cast
    LEFT     = 5,                               // came by, chunk evicted: gone
    WANTED   = 6,                               // GET of a segment that circulates
    LOST     = 7                                // GET of one that should and does not
}

// What is to be done about a packet. Everything behind the classification goes by it.
enum bit<8> Task {
    ORDINARY    = 0,                            // forward it untouched
    REFUSED     = 1,
    POOL_ARP    = 2,                            // answer for the pool address
    JOIN        = 3,
    LEAVE       = 4,
    GET         = 5,                            // of a chunk that is not served here
    SERVE       = 6,                            // GET of one that is
    NAK         = 7,
    FILL        = 8,
    CAST        = 9,                            // data datagram from a host to the fabric's group
    // From the recirculation port.
    PASS        = 10,                           // cached segment comes by
    WAIT        = 11,                           // the same, of a chunk that is not served yet
    GONE        = 12,                           // the same, of a chunk that was evicted: nothing
    FREE        = 13,                           // last LEAVE
    ACKNOWLEDGE = 14,                           // head of a FILL, turned into its acknowledgement by egress
    HERE        = 15                            // its sender says where it is
}

struct metadata_t {
    fabric_t    fabric;
    Task        task;
    DropReason  drop;
    bit<1>      forward;                        // by destination address

    port_t      port;
    bit<1>      round;                          // comes from the recirculation port
    member_t    member;
    members_t   me;                             // the sender as a set
    tick_t      now;

    // Whose it claims to be, and what is known of that.
    mac_address_t  sender_mac;
    ipv4_address_t sender_ip;
    port_t         off_station;     // the ingress port from the one of this MAC address
    bit<1>         known;           // port, MAC and IP address are those of a node
    bit<1>         taken;           // the IP address is a node's
    // Kernels take packets that the parser does not look into: with IP options, in fragments, with VLAN tags.
    bit<1>         odd;
    bit<1>         buried;          // behind more tags than the parser counts

    bit<8>      op;                             // of a control datagram, 0 for anything else
    bit<8>      request_color;
    bit<8>      segment_color;
    bit<16>     charged;                        // 1 + member because of which a segment is cast, 0 = nobody

    chunk_key_t key;
    slot_index_t segment;                       // low bits of the index
    ChunkState  state;
    bit<8>      cached;                         // FLAG_CACHED where the chunk is served here
    slot_index_t first_slot;                    // of the chunk
    bit<32>     left;                           // segments of the chunk from the one that the packet names
    // FILL: where it differs from what it should be.
    port_t      off_port;
    segment_t   off_segment;
    bit<32>     off_segments;
    chunk_key_t off_key;

    bit<32>     salted_0;                       // the key under the salt
    bit<32>     salted_1;
    bit<32>     salted_2;
    bit<32>     salted_3;
    signature_t signature;
    interest_index_t index;
    ownership_t owner;                          // of the interest entry
    ownership_t over;                           // OVER: its sender can pay for no more entries
    ownership_t payment;                        // CHANGES: what its sender pays for
    members_t   before;                         // interest set before this packet
    members_t   mine;                           // `me` if it was in it
    members_t   newcomer;                       // `me` if it was not
    InterestOutcome outcome;
    members_t   interest;
    bit<16>     leader;                         // 1 + member that sent the last GET, 0 = nobody
    bit<1>      raised;                         // this JOIN gave a waiting member company
    bit<1>      notice;                         // becomes a NOTICE

    slot_index_t slot;
    ownership_t circulates;
    members_t   due;                            // who asked for the segment that comes by
    bit<8>      due_all;                        // and whether one of them for everybody who is interested
    OrbitEvent  event;
    bit<1>      again;                          // goes to the recirculation port
    QueueId_t   queue;                          // there
    bit<16>     needed;                         // bytes that the frame must have had when it arrived

    heat_index_t cell_a;
    heat_index_t cell_b;
    bit<32>     gets_a;
    bit<32>     gets_b;
    bit<32>     gets;                           // the lesser
    bit<32>     missing_a;                      // to be worth a report
    bit<32>     missing_b;
    bit<8>      reported;                       // NOT_RECENT: before this window, 0: it was not asked
    bit<8>      seen;                           // the same of HERE

    members_t   deliver;
    bit<1>      cast;
    group_t     second_group;
    port_t      egress;
    bit<1>      unicast;
    bit<1>      hairpin;                        // the destination lies behind the ingress port
    bit<1>      flooded;
    bit<1>      rewritten;                      // as v1model's controls say; here it is `checksum`, known earlier
    bit<1>      checksum;                       // of the IPv4 header has to be made anew

    bit<8>      mirror_tag;
    bit<16>     mirror_port;                    // m.port in whole bytes
    MirrorId_t  mirror_session;
}

struct egress_metadata_t {
    DropReason drop;
    members_t  deliver;
    bit<16>    missing;                         // bytes that the frame is too short by
}

#endif
