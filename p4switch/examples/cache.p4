// A cache in the network: port 1 asks, port 2 answers, and what was answered once the switch answers itself.
#define SLOTS 1024
#include <core.p4>
#include <v1model.p4>

const bit<8> GET = 1;
const bit<8> VALUE = 2;
header question_t { bit<8> kind; bit<32> key; bit<64> value; }
struct headers_t { question_t q; }
struct metadata_t { bit<10> slot; bit<32> owner; }

parser Parse(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { packet.extract(h.q); transition accept; }
}
control Nothing(inout headers_t h, inout metadata_t m) { apply { } }
control NoEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control Cache(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<32>>(SLOTS) owners;   // the key of each slot, plus 1; 0: the slot is free
    register<bit<64>>(SLOTS) values;
    counter(2, CounterType.packets) answers;   // 0: by the server, 1: by the switch
    apply {
        hash(m.slot, HashAlgorithm.crc32, 10w0, { h.q.key }, 32w1024);
        owners.read(m.owner, (bit<32>)m.slot);
        if (h.q.kind == GET && m.owner == h.q.key + 1) {
            values.read(h.q.value, (bit<32>)m.slot);
            h.q.kind = VALUE;
            s.egress_spec = s.ingress_port;
            answers.count(1);
        } else if (h.q.kind == VALUE) {
            owners.write((bit<32>)m.slot, h.q.key + 1);
            values.write((bit<32>)m.slot, h.q.value);
            s.egress_spec = 1;
            answers.count(0);
        } else {
            s.egress_spec = 2;
        }
    }
}
control Emit(packet_out packet, in headers_t h) { apply { packet.emit(h.q); } }

V1Switch(Parse(), Nothing(), Cache(), NoEgress(), Nothing(), Emit()) main;
