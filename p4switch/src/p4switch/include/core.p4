// The core library of P4_16: what every architecture shares.
#ifndef _CORE_P4_
#define _CORE_P4_

// The compiler numbers errors in this order, and the runtime's ABI knows the numbers.
error {
    NoError,
    PacketTooShort,        // extract, advance or lookahead ran past the end of the packet
    NoMatch,               // no case of a select matched
    StackOutOfBounds,      // next or last of a header stack that has none
    HeaderTooShort,        // a varbit field was given more bits than it holds
    ParserTimeout,         // the parser went on for too long
    ParserInvalidArgument  // a number of bits that cannot be extracted or skipped
}

extern packet_in {
    // Reads a header of fixed size and moves on.
    void extract<T>(out T hdr);
    // Reads a header whose one varbit field takes the given number of bits.
    void extract<T>(out T variableSizeHeader, in bit<32> variableFieldSizeInBits);
    // The next bits, without moving.
    T lookahead<T>();
    void advance(in bit<32> sizeInBits);
    // Bytes of the whole packet.
    bit<32> length();
}

extern packet_out {
    // Appends a header if it is valid; of a stack, union or struct every valid header in order.
    void emit<T>(in T hdr);
}

// Unless `check` holds, parsing stops with the error.
extern void verify(in bool check, in error toSignal);

@noWarn("unused")
action NoAction() {}

match_kind {
    exact,
    ternary,
    lpm
}

// Fails the compilation where `check` is false.
extern bool static_assert(bool check, string message);
extern bool static_assert(bool check);

#endif
