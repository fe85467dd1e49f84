// Meters of every kind: the color that each gives stands in the frame.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header colors_t { bit<8> index; bit<8> by_bytes; bit<8> by_packets; bit<8> direct; }
struct headers_t { ethernet_t ethernet; colors_t colors; }
struct metadata_t { bit<2> color; }

parser PacketParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { packet.extract(h.ethernet); packet.extract(h.colors); transition accept; }
}

control NoChecksum(inout headers_t h, inout metadata_t m) { apply { } }

control Metering(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    meter(8, MeterType.bytes) bytes_meter;
    meter(8, MeterType.packets) packets_meter;
    direct_meter<bit<2>>(MeterType.packets) source_meter;

    action mark() { source_meter.read(m.color); }
    table source {
        key = { h.ethernet.src: exact; }
        actions = { mark; @defaultonly NoAction; }
        default_action = NoAction();
        meters = source_meter;
        size = 16;
    }
    apply {
        bytes_meter.execute_meter((bit<32>) h.colors.index, h.colors.by_bytes);
        packets_meter.execute_meter((bit<32>) h.colors.index, h.colors.by_packets);
        source.apply();
        h.colors.direct = (bit<8>) m.color;
        s.egress_spec = 2;
    }
}

control Nothing(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }

control PacketDeparser(packet_out packet, in headers_t h) {
    apply { packet.emit(h.ethernet); packet.emit(h.colors); }
}

V1Switch(PacketParser(), NoChecksum(), Metering(), Nothing(), NoChecksum(), PacketDeparser()) main;
