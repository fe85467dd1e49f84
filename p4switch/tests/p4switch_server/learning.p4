// A learning switch with one of everything that a controller can program.
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 255;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> kind;
}

@controller_header("packet_in")
header packet_in_t {
    bit<9> port;
    bit<7> _pad;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> port;
    bit<7> _pad;
}

struct headers_t {
    packet_in_t  to_controller;
    packet_out_t from_controller;
    ethernet_t   ethernet;
}

struct metadata_t { }

struct learn_t {
    bit<48> source;
    bit<9>  port;
}

parser PacketParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        transition select(s.ingress_port) {
            CPU_PORT: from_controller;
            default: ethernet;
        }
    }
    state from_controller {
        packet.extract(h.from_controller);
        transition ethernet;
    }
    state ethernet {
        packet.extract(h.ethernet);
        transition accept;
    }
}

control NoChecksum(inout headers_t h, inout metadata_t m) { apply { } }

control LearnIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    direct_counter(CounterType.packets_and_bytes) hits;
    counter(512, CounterType.packets) arrived;
    register<bit<48>>(512) last_source;
    @name("paths") action_selector(HashAlgorithm.crc32, 64, 16) paths;

    action forward(bit<9> port) { s.egress_spec = port; }
    action flood() { s.mcast_grp = 1; }
    action punt() { s.egress_spec = CPU_PORT; }
    action via(bit<9> port) { s.egress_spec = port; }
    action copy(bit<32> session) { clone(CloneType.I2E, session); }

    table dmac {
        key = { h.ethernet.dst: exact @name("dst"); }
        actions = { forward; flood; punt; }
        default_action = flood();
        counters = hits;
        size = 1024;
    }
    table mirror {
        key = { h.ethernet.src: ternary @name("source"); }
        actions = { copy; NoAction; }
        default_action = NoAction();
        support_timeout = true;
        size = 64;
    }
    table route {
        key = {
            h.ethernet.kind: exact @name("kind");
            h.ethernet.src: selector;
        }
        actions = { via; NoAction; }
        implementation = paths;
        size = 64;
    }

    apply {
        if (h.from_controller.isValid()) {
            s.egress_spec = h.from_controller.port;
            h.from_controller.setInvalid();
            return;
        }
        arrived.count((bit<32>) s.ingress_port);
        last_source.write((bit<32>) s.ingress_port, h.ethernet.src);
        digest<learn_t>(1, { h.ethernet.src, s.ingress_port });
        mirror.apply();
        if (!route.apply().hit) {
            dmac.apply();
        }
    }
}

control LearnEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        if (s.egress_port == CPU_PORT) {
            h.to_controller.setValid();
            h.to_controller.port = s.ingress_port;
            h.to_controller._pad = 0;
        } else if (s.instance_type == 5 && s.egress_port == s.ingress_port) {
            mark_to_drop(s);
        }
    }
}

control PacketDeparser(packet_out packet, in headers_t h) {
    apply {
        packet.emit(h.to_controller);
        packet.emit(h.ethernet);
    }
}

V1Switch(PacketParser(), NoChecksum(), LearnIngress(), LearnEgress(), NoChecksum(), PacketDeparser()) main;
