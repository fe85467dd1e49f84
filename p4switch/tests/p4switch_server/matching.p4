// Every match kind, meters, value sets, wide registers, entries in the source.
#include <core.p4>
#include <v1model.p4>

header probe_t {
    bit<16> kind;
    bit<32> address;
    bit<16> port;
    bit<8>  color;
    bit<8>  rule;
}

struct headers_t { probe_t probe; }
struct metadata_t { bit<2> color; }

parser PacketParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    value_set<bit<16>>(4) kinds;
    state start {
        transition select(packet.lookahead<bit<16>>()) {
            kinds: probe;
            16w1: probe;
            default: accept;
        }
    }
    state probe {
        packet.extract(h.probe);
        transition accept;
    }
}

control NoChecksum(inout headers_t h, inout metadata_t m) { apply { } }

control MatchIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<2048>>(8) blocks;
    register<bit<1>>(8) flags;
    meter(4, MeterType.packets) limit;
    direct_meter<bit<2>>(MeterType.packets) rate;
    direct_counter(CounterType.packets) used;

    action rule(bit<8> number) { h.probe.rule = number; rate.read(m.color); }
    action plain(bit<8> number) { h.probe.rule = number; }

    table rules {
        key = {
            h.probe.address: lpm @name("address");
            h.probe.port: exact @name("port");
        }
        actions = { rule; NoAction; }
        default_action = NoAction();
        meters = rate;
        counters = used;
        size = 32;
    }
    table ranges {
        key = {
            h.probe.port: range @name("port");
            h.probe.kind: optional @name("kind");
            h.probe.address: ternary @name("address");
        }
        actions = { plain; NoAction; }
        default_action = NoAction();
        const entries = {
            (100..200, _, _): plain(77);
            (300..300, 16w1, 32w0x0a000000 &&& 32w0xff000000): plain(78);
        }
    }
    table seeded {
        key = { h.probe.port: exact @name("port"); }
        actions = { plain; NoAction; }
        default_action = plain(99);
        entries = {
            const 16w7: plain(7);
            16w8: plain(8);
        }
        size = 8;
    }
    apply {
        s.egress_spec = s.ingress_port;
        if (!h.probe.isValid()) {
            mark_to_drop(s);
            return;
        }
        blocks.write(0, (bit<2048>) h.probe.address << 200);
        flags.write(3, 1);
        seeded.apply();
        rules.apply();
        ranges.apply();
        bit<2> color;
        limit.execute_meter((bit<32>) 1, color);
        h.probe.color = (bit<8>) color;
    }
}

control MatchEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }

control PacketDeparser(packet_out packet, in headers_t h) {
    apply { packet.emit(h.probe); }
}

V1Switch(PacketParser(), NoChecksum(), MatchIngress(), MatchEgress(), NoChecksum(), PacketDeparser()) main;
