// Headers and metadata that pass between the controls.

#ifndef KVCAST_TYPES_P4
#define KVCAST_TYPES_P4

// All ports. p4switch floods to it by itself (kvcast.p4 says so at `main`) until a controller writes it.
#define FLOOD_GROUP 1
const group_t GROUP_FLOOD = FLOOD_GROUP;
const bit<32> SESSION_NEXT_SEGMENT = 500;   // clone session; its port is never sent to, any will do

// standard_metadata.instance_type
const bit<32> INSTANCE_ARRIVED = 0;
const bit<32> INSTANCE_CLONED_AT_INGRESS = 1;

// Payload is kept and moved in blocks as wide as p4c lets a field be.
#define BLOCK_BYTES 256
header block_t {
    bit<2048> bits;
}

// BTH, DETH and data header as one field: what the chunk store gives back in one read.
header transport_image_t {
    bit<416> bits;
}

struct headers_t {
    ethernet_t        ethernet;
    vlan_t[2]         vlan;
    arp_t             arp;
    ipv4_t            ipv4;
    ip_option_t[10]   option;
    udp_t             udp;
    kv_control_t      kvc;
    bth_t             bth;
    deth_t            deth;
    kv_data_t         kvd;
    transport_image_t image;
    block_t[SEGMENT_BLOCKS] block;
    icrc_t            icrc;
}

enum bit<8> PacketKind {
    ORDINARY = 0,                   // forwarded untouched
    CONTROL  = 1,                   // control datagram
    CAST     = 2,                   // data datagram to the fabric's group
    POOL_ARP = 3,                   // ARP request for the pool address
    REFUSED  = 4                    // whatever it is, its sender may not send it
}

struct metadata_t {
    fabric_t    fabric;
    PacketKind  kind;
    bit<8>      op;                         // of a control datagram, 0 for anything else
    DropReason  drop;

    // Who sent the packet and when it arrived. bmv2 forgets both the ingress port and the time when
    // a packet is cloned or recirculated, so a GET of several segments carries them along.
    @field_list(1) port_t    port;
    @field_list(1) member_t  member;
    @field_list(1) members_t me;            // the sender as a set, 0 = no member
    @field_list(1) time_us_t now;

    // Whose it claims to be, and what is known of that.
    mac_address_t  sender_mac;
    ipv4_address_t sender_ip;
    port_t         off_station;     // the ingress port from the one of this MAC address
    bit<1>         known;           // port, MAC and IP address are those of a node
    bit<1>         taken;           // the IP address is a node's
    // Kernels take packets that the parser does not look into: with IP options, in fragments, with VLAN tags.
    bit<1>         odd;
    bit<1>         buried;          // behind more tags than the parser counts

    bit<2>      request_color;
    bit<2>      segment_color;
    bit<16>     charged;            // 1 + member because of which segments are cast, 0 = nobody

    chunk_key_t key;
    ChunkState  state;
    bit<8>      cached;                     // FLAG_CACHED where the chunk is served here
    slot_t      base_slot;
    bit<32>     segments;                   // as kv_cache says, for a chunk that is filling or serving
    port_t      fill_port;
    bit<32>     left;                       // segments of the chunk from the one that the packet names

    bit<64>     hashed;                     // the key under the salt
    signature_t signature;
    InterestOutcome outcome;
    members_t   interest;                   // after this packet, 0 = no live entry for this key
    member_t    leader;                     // 1 + member that sent the last GET, 0 = nobody
    bit<1>      raised;                     // this JOIN gave a waiting member company

    members_t   deliver;                    // a cast packet goes to exactly these
    bit<1>      cast;
    port_t      egress;
    bit<1>      unicast;                    // leaves by `egress`
    bit<1>      flooded;
    bit<1>      rewritten;                  // the IPv4 header changed
    bit<1>      cast_too;                   // a FILL that is stored and cast
}

#endif
