// The states that the parsers of both architectures share: down to UDP and the BTH. It is included inside a parser
// that has `packet`, `h`, `m`, and the states parse_control and parse_data. Those differ, because only v1model's
// pipeline carries payload.

    state parse_ethernet {
        packet.extract(h.ethernet);
        transition select(h.ethernet.ether_type) {
            ETHERTYPE_IPV4:         parse_ipv4;
            ETHERTYPE_ARP:          parse_arp;
            ETHERTYPE_VLAN:         parse_tag;
            ETHERTYPE_SERVICE_VLAN: parse_tag;
            default:                accept;
        }
    }
    // A kernel looks behind tags of VLAN 0, however many.
    state parse_tag {
        m.odd = 1;
        packet.extract(h.vlan[0]);
        transition select(h.vlan[0].ether_type) {
            ETHERTYPE_IPV4:         parse_ipv4;
            ETHERTYPE_ARP:          parse_arp;
            ETHERTYPE_VLAN:         parse_second_tag;
            ETHERTYPE_SERVICE_VLAN: parse_second_tag;
            default:                accept;
        }
    }
    state parse_second_tag {
        packet.extract(h.vlan[1]);
        transition select(h.vlan[1].ether_type) {
            ETHERTYPE_IPV4:         parse_ipv4;
            ETHERTYPE_ARP:          parse_arp;
            ETHERTYPE_VLAN:         bury;
            ETHERTYPE_SERVICE_VLAN: bury;
            default:                accept;
        }
    }
    state bury {
        m.buried = 1;
        transition accept;
    }
    state parse_arp {
        packet.extract(h.arp);
        m.sender_ip = h.arp.sender_ip;
        transition accept;
    }
    state parse_ipv4 {
        packet.extract(h.ipv4);
        m.sender_ip = h.ipv4.src;
        transition select(h.ipv4.version, h.ipv4.ihl, h.ipv4.flags, h.ipv4.fragment_offset, h.ipv4.protocol) {
            (4,  5, 0 &&& 1, 0, IP_PROTOCOL_UDP): parse_udp;
            (4,  5, _, 0, IP_PROTOCOL_UDP):       parse_odd_udp;
            (4, 15, _, 0, IP_PROTOCOL_UDP):       parse_option_10;
            (4, 14, _, 0, IP_PROTOCOL_UDP):       parse_option_9;
            (4, 13, _, 0, IP_PROTOCOL_UDP):       parse_option_8;
            (4, 12, _, 0, IP_PROTOCOL_UDP):       parse_option_7;
            (4, 11, _, 0, IP_PROTOCOL_UDP):       parse_option_6;
            (4, 10, _, 0, IP_PROTOCOL_UDP):       parse_option_5;
            (4,  9, _, 0, IP_PROTOCOL_UDP):       parse_option_4;
            (4,  8, _, 0, IP_PROTOCOL_UDP):       parse_option_3;
            (4,  7, _, 0, IP_PROTOCOL_UDP):       parse_option_2;
            (4,  6, _, 0, IP_PROTOCOL_UDP):       parse_option_1;
            (4,  _, _, _, IP_PROTOCOL_UDP):       parse_fragment;
            default: accept;
        }
    }
    state parse_option_10 { packet.extract(h.option[0]); transition parse_option_9; }
    state parse_option_9  { packet.extract(h.option[1]); transition parse_option_8; }
    state parse_option_8  { packet.extract(h.option[2]); transition parse_option_7; }
    state parse_option_7  { packet.extract(h.option[3]); transition parse_option_6; }
    state parse_option_6  { packet.extract(h.option[4]); transition parse_option_5; }
    state parse_option_5  { packet.extract(h.option[5]); transition parse_option_4; }
    state parse_option_4  { packet.extract(h.option[6]); transition parse_option_3; }
    state parse_option_3  { packet.extract(h.option[7]); transition parse_option_2; }
    state parse_option_2  { packet.extract(h.option[8]); transition parse_option_1; }
    state parse_option_1  { packet.extract(h.option[9]); transition parse_odd_udp; }
    state parse_odd_udp {
        m.odd = 1;
        packet.extract(h.udp);
        transition accept;
    }
    state parse_fragment {
        m.odd = 1;
        transition accept;
    }
    state parse_udp {
        packet.extract(h.udp);
        transition select(h.udp.dst_port) {
            UDP_PORT_CONTROL: parse_control;
            UDP_PORT_ROCE:    parse_bth;
            default:          accept;
        }
    }
    state parse_bth {
        packet.extract(h.bth);
        transition select(h.bth.opcode, h.bth.qpn) {
            (BTH_OPCODE_UD_SEND_ONLY, QPN_MULTICAST): parse_data;
            default: accept;
        }
    }
