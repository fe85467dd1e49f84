// Types and states that all architectures share.

#ifndef KVCAST_STATES_P4
#define KVCAST_STATES_P4

typedef bit<9>  port_t;
const bit<32> PORTS = 512;
typedef bit<16> group_t;
typedef bit<48> time_us_t;          // microseconds
typedef bit<32> slot_t;             // room for one segment
typedef bit<32> signature_t;        // second hash of a key

// Segments that one GET may ask for: what bounds the burst that 82 bytes cause. Readers ask for 64 at most.
@noWarn("unused")
const bit<16> GET_COUNT_MOST = 127;

enum bit<8> ChunkState {
    ABSENT  = 0,
    FILLING = 1,
    SERVING = 2
}

// What a JOIN or LEAVE did: the flag of its NOTICE.
enum bit<8> InterestOutcome {
    NONE    = 0,
    JOINED  = FLAG_JOINED,
    LEFT    = FLAG_LEFT,
    REFUSED = FLAG_REFUSED
}

// What the controller says once for the whole fabric.
struct fabric_t {
    bit<1>         enabled;
    mac_address_t  group_mac;
    ipv4_address_t group_ip;
    mac_address_t  pool_mac;
    ipv4_address_t pool_ip;
    bit<6>         from_switch_dscp;
    time_us_t      interest_ttl_us;
    time_us_t      heat_window_us;
    bit<32>        heat_gets;
    // What this packet's addresses differ in from the fabric's; nothing where the packet has no such address.
    ipv4_address_t off_group;       // IPv4 destination from group_ip
    ipv4_address_t off_pool_ip;     // the same from pool_ip
    ipv4_address_t off_pool;        // ARP target from pool_ip
    bit<6>         off_mark;        // DSCP from from_switch_dscp
}

// A digest to the controller.
struct heat_report_t {
    chunk_key_t key;
    members_t   members;            // interest set
    bit<32>     gets;               // GETs within the window, 0 for a report that a JOIN caused
}

// Another one: a node says where it is.
struct sighting_t {
    chunk_key_t    key;             // what the controller told it to say
    mac_address_t  mac;
    ipv4_address_t ip;
    port_t         port;
}

#endif
