// Why a packet was dropped. The number is the index into the drop counters; numbers are never reused.

#ifndef KVCAST_DROPS_P4
#define KVCAST_DROPS_P4

enum bit<8> DropReason {
    NONE           = 0,     // not dropped
    NOT_A_MEMBER   = 1,     // kvcast datagram from a port without a member
    TRUNCATED      = 2,     // shorter than its headers say
    BAD_LENGTH     = 3,     // IP or UDP length is not the one of this operation
    BAD_VERSION    = 4,     // neither a version nor a kind of kvcast datagram that this program knows
    UNKNOWN_OP     = 5,
    FORGED_OP      = 6,     // a host sent what only a switch may say
    NO_INTEREST    = 7,     // cast data, or a LEAVE, of a chunk for which nobody else is waiting
    LAST_LEFT      = 8,     // LEAVE of the last member: done, and nobody to notify
    BEYOND_END     = 9,     // GET of no segment of the chunk
    FILL_REFUSED   = 10,    // chunk is not being filled, or not from this port
    FILL_MISMATCH  = 11,    // FILL whose data packet is not the segment that it claims
    HAIRPIN        = 12,    // destination lies behind the ingress port
    NOT_INTERESTED = 13,    // egress: copy for a port outside the interest set
    FLOOD_ECHO     = 14,    // egress: flooded copy for the ingress port
    HERE           = 15,    // HERE: done, it goes no further than the switch
    FORGED_SOURCE  = 16,    // the sender's address is another port's
    FORGED_ARP     = 17,    // ARP that gives a known IP address to somebody else
    NOT_PLAIN      = 18,    // to kvcast, with IP options, in fragments, or behind VLAN tags
    NOT_JOINED     = 19,    // GET of a chunk for which its sender is not waiting: no JOIN, or that was long ago
    METERED        = 20,    // more JOINs, GETs or segments than its port may cause
    GET_TOO_LARGE  = 21,    // GET of more than GET_COUNT_MOST segments
    TOO_MANY_ENTRIES = 22   // JOIN that takes an entry, of a port that keeps as many as it may
}

const bit<32> DROP_REASONS = 32;

#endif
