// Everything that kvcast puts on the wire or reads from it, and the constants of those formats.
// This file is the one source of the layouts: the Python codec is generated from it.

#ifndef KVCAST_HEADERS_P4
#define KVCAST_HEADERS_P4

typedef bit<48>  mac_address_t;
typedef bit<32>  ipv4_address_t;
typedef bit<128> chunk_key_t;       // first 128 bits of a keyed blake2b over the whole prefix
typedef bit<8>   member_t;          // index of a node at its switch
typedef bit<64>  members_t;         // set of members, bit i = member i
typedef bit<32>  segment_t;         // index of a segment in its chunk

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<16> ETHERTYPE_VLAN = 0x8100;          // 802.1Q
const bit<16> ETHERTYPE_SERVICE_VLAN = 0x88a8;  // 802.1ad
const bit<8>  IP_PROTOCOL_UDP = 17;
const bit<16> UDP_PORT_ROCE    = 4791;
const bit<16> UDP_PORT_CONTROL = 4793;

const bit<8> KV_VERSION = 1;

// Operations of the control datagram.
const bit<8> OP_JOIN     = 1;
const bit<8> OP_NOTICE   = 2;
const bit<8> OP_LEAVE    = 3;
const bit<8> OP_GET      = 4;
const bit<8> OP_FILL     = 5;
const bit<8> OP_FILL_ACK = 6;
const bit<8> OP_NAK      = 7;
const bit<8> OP_HERE     = 8;       // tells the controller, through the switch, at which port its sender is
// Operation of the data header.
const bit<8> OP_DATA     = 16;

// Flags of a NOTICE.
const bit<8> FLAG_JOINED    = 0x01;
const bit<8> FLAG_LEFT      = 0x02;
const bit<8> FLAG_REFUSED   = 0x04;     // no room in the interest table
const bit<8> FLAG_CACHED    = 0x08;     // the switch serves this chunk itself
@noWarn("unused")
const bit<8> FLAG_NO_SWITCH = 0x10;     // answered by the holder: no kvcast switch on the path
// Flag of a GET.
const bit<8> FLAG_ONLY_ME   = 0x20;     // a serving switch answers the asker alone
// Flag of a FILL.
const bit<8> FLAG_CAST_TOO  = 0x40;     // the switch casts the segment, too, as if it had come as a data datagram

// A UD SEND-only to the multicast queue pair number.
const bit<8>  BTH_OPCODE_UD_SEND_ONLY = 0x64;
const bit<24> QPN_MULTICAST = 0xffffff;

header ethernet_t {
    mac_address_t dst;
    mac_address_t src;
    bit<16>       ether_type;
}

header vlan_t {                     // what follows the Ethernet type of an 802.1Q tag
    bit<16> tag;
    bit<16> ether_type;
}

header arp_t {                      // IPv4 over Ethernet
    bit<16>        hardware_type;
    bit<16>        protocol_type;
    bit<8>         hardware_length;
    bit<8>         protocol_length;
    bit<16>        operation;
    mac_address_t  sender_mac;
    ipv4_address_t sender_ip;
    mac_address_t  target_mac;
    ipv4_address_t target_ip;
}

const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY   = 2;

header ipv4_t {
    bit<4>         version;
    bit<4>         ihl;
    bit<6>         dscp;
    bit<2>         ecn;
    bit<16>        total_length;
    bit<16>        identification;
    bit<3>         flags;           // reserved, don't fragment, more fragments
    bit<13>        fragment_offset;
    bit<8>         ttl;
    bit<8>         protocol;
    bit<16>        checksum;
    ipv4_address_t src;
    ipv4_address_t dst;
}

const bit<3> IP_DONT_FRAGMENT = 2;

header ip_option_t {                // four bytes of options: ten of these at most
    bit<32> octets;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// Control datagram, UDP destination port 4793.
header kv_control_t {
    bit<8>      version;
    bit<8>      op;
    bit<8>      flags;
    member_t    member;             // whom the packet speaks of; the switch overwrites it
    bit<16>     count;              // GET: segments asked for. NOTICE: 1 + member that sent the last GET, 0 = nobody
    bit<16>     tag;                // echoed in what answers
    segment_t   segment;            // first segment
    bit<32>     segments;           // segments in the chunk
    chunk_key_t key;
    members_t   members;            // NOTICE: interest set after the operation
}

// InfiniBand base transport header.
header bth_t {
    bit<8>  opcode;
    bit<1>  solicited_event;
    bit<1>  mig_request;
    bit<2>  pad_count;
    bit<4>  transport_version;
    bit<16> partition_key;
    bit<8>  resv8a;                 // masked by the ICRC (FECN, BECN)
    bit<24> qpn;
    bit<1>  ack_request;
    bit<7>  resv7;
    bit<24> psn;
}

// InfiniBand datagram extended transport header.
header deth_t {
    bit<32> qkey;
    bit<8>  reserved;
    bit<24> src_qpn;
}

// Header of the payload in a data datagram, UDP destination port 4791.
header kv_data_t {
    bit<8>      version;
    bit<8>      op;
    bit<8>      flags;
    bit<8>      reserved;
    segment_t   segment;
    bit<32>     segments;
    bit<32>     length;             // payload bytes that count; the last segment is padded
    chunk_key_t key;
}

// Invariant CRC, the last four bytes of every RoCEv2 datagram.
header icrc_t {
    bit<32> value;
}

// Lengths in bytes, without the Ethernet header where IP counts.
const bit<16> IPV4_BYTES        = 20;
const bit<16> CONTROL_UDP_BYTES = 48;                       // UDP + control header
const bit<16> DATA_UDP_BYTES    = 64 + SEGMENT_BYTES;        // UDP + BTH + DETH + data header + payload + ICRC
const bit<16> FILL_UDP_BYTES    = 104 + SEGMENT_BYTES;       // UDP + control header + all of the above but UDP
const bit<32> ETHERNET_BYTES    = 14;

#endif
