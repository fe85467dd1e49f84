// Names, ids, documentation, annotations and types as P4Info shows them.
#include <core.p4>
#include <v1model.p4>

@p4runtime_translation("example.org/port", 32)
type bit<9> port_id_t;
type bit<16> vlan_id_t;
enum bit<8> color_t { RED = 1, BLUE = 2 }

header tag_t {
    vlan_id_t vlan;
    bit<8>    color;
    bit<48>   address;
}

struct headers_t { tag_t[2] tags; tag_t tag; }
struct inner_t { bit<8> first; bool second; }
struct report_t { inner_t inner; vlan_id_t vlan; color_t color; }
struct metadata_t { vlan_id_t vlan; port_id_t port; color_t color; bool seen; inner_t inner; }

parser PacketParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    @id(7) value_set<bit<48>>(8) known;
    state start {
        packet.extract(h.tag);
        transition select(h.tag.address) {
            known: accept;
            default: accept;
        }
    }
}

control NoChecksum(inout headers_t h, inout metadata_t m) { apply { } }

@brief("inner")
control Part(inout headers_t h, inout metadata_t m) {
    @brief("Sets the color.") @description("All of it.")
    action set_color(@id(5) @brief("which") color_t color, bit<4> rest) { m.color = color; }
    action set_port(port_id_t port, vlan_id_t vlan) { m.port = port; m.vlan = vlan; }
    @name("the_colors") @custom("text", 1) @structured["a", 2] @keyed[width=3]
    table colors {
        key = {
            h.tag.vlan: exact @name("vlan") @id(9);
            h.tag.address[7:0]: ternary @brief("low byte");
            m.seen: exact;
            m.port: optional;
            h.tags[0].isValid(): exact;
        }
        actions = {
            @tableonly set_color;
            @defaultonly NoAction;
            set_port;
        }
        const default_action = NoAction();
        size = 10;
    }
    apply { colors.apply(); }
}

control MainIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    Part() left;
    Part() right;
    @id(0x42) action unused_name(bit<8> x) { m.inner.first = x; }
    @hidden action concealed() { m.seen = true; }
    table named {
        key = { m.vlan: exact; }
        actions = { unused_name; NoAction; }
        default_action = NoAction();
    }
    counter(8, CounterType.bytes) octets;
    apply {
        left.apply(h, m);
        right.apply(h, m);
        named.apply();
        concealed();
        octets.count(1);
        digest<report_t>(1, { m.inner, m.vlan, m.color });
    }
}

control MainEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }

control PacketDeparser(packet_out packet, in headers_t h) { apply { packet.emit(h); } }

@pkginfo(name="annotated", version="1.2") @custom("package")
V1Switch(PacketParser(), NoChecksum(), MainIngress(), MainEgress(), NoChecksum(), PacketDeparser()) main;
