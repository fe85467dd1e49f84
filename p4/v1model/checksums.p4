// IPv4 checksums. They are not verified: a switch of layer 2 forwards what it gets. They are
// computed anew only where this program changed the header.

control VerifyChecksums(inout headers_t h, inout metadata_t m) {
    apply { }
}

control UpdateChecksums(inout headers_t h, inout metadata_t m) {
    apply {
        update_checksum(m.rewritten == 1,
            { h.ipv4.version, h.ipv4.ihl, h.ipv4.dscp, h.ipv4.ecn, h.ipv4.total_length, h.ipv4.identification,
              h.ipv4.flags, h.ipv4.fragment_offset, h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst },
            h.ipv4.checksum, HashAlgorithm.csum16);
    }
}
