// HERE: tells the controller where a node is, and that it is that node: the key is what the controller told that node
// alone. It ends here. What is known is not told again, and a port is heard once in HERE_INTERVAL_US.

const time_us_t HERE_INTERVAL_US = 10000;

control Here(in headers_t h, inout metadata_t m) {
    @id(0x16000a01) register<time_us_t>(PORTS) here_told;

    apply {
        m.drop = DropReason.HERE;
        if (m.known == 0) {
            time_us_t told;
            here_told.read(told, (bit<32>) m.port);
            if (told == 0 || m.now - told >= HERE_INTERVAL_US) {
                here_told.write((bit<32>) m.port, m.now);
                digest<sighting_t>(2, { m.key, h.ethernet.src, h.ipv4.src, m.port });
            }
        }
    }
}
