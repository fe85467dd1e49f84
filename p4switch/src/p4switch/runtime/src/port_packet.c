/* Ports on Linux interfaces: AF_PACKET sockets, read and written in batches. One socket receives; another one, which
 * epoll does not watch, sends, because the kernel would otherwise wake the thread for each frame that it has sent.
 * Frames carry a virtio_net_hdr, so the work that a veth peer leaves to its "NIC" (checksums, TCP segmentation)
 * survives the passage. The port restores a VLAN tag that the kernel removed. When an interface vanishes, the port
 * looks for it until it is back. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "join.h"
#include "offload.h"
#include "link.h"
#include "port_kinds.h"
#include "switch.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

enum {
    SOCKET_BUFFER_BYTES = 16 << 20,
    VNET_BYTES = sizeof(struct virtio_net_hdr),
    CONTROL_BYTES = CMSG_SPACE(sizeof(struct tpacket_auxdata)),
    VLAN_BYTES = 4,
    PARTS_MAX = 3, /* of a message with one packet; joined ones take no more each */
};

struct packet_port {
    char name[IFNAMSIZ];
    int index;
    uint32_t frame_bytes_max; /* of its MTU */
    struct ps_buffer *buffers[PS_BURST];
    struct mmsghdr rx[PS_BURST];
    struct iovec rx_parts[PS_BURST];
    _Alignas(8) uint8_t control[PS_BURST][CONTROL_BYTES];
    struct mmsghdr tx[PS_TX_BATCH];
    uint32_t tx_items[PS_TX_BATCH]; /* packets by each message */
    struct iovec tx_parts[PS_TX_BATCH * PARTS_MAX];
    struct virtio_net_hdr tx_vnet[PS_TX_BATCH];
    struct ps_joined tx_joined[PS_TX_BATCH / 2];
    bool one_by_one; /* the kernel does not take joined packets */
};

/* ------------------------------------------------------------------ opening */

static int set_option(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value);
}

static void set_buffer(int fd, int force, int plain) {
    if (set_option(fd, SOL_SOCKET, force, SOCKET_BUFFER_BYTES) != 0)
        (void)set_option(fd, SOL_SOCKET, plain, SOCKET_BUFFER_BYTES);
}

static int bind_to(int fd, int index, int protocol) {
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons((uint16_t)protocol), .sll_ifindex = index};
    return bind(fd, (struct sockaddr *)&address, sizeof address);
}

static int new_socket(void) {
    return socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); /* protocol 0: nothing arrives before bind */
}

/* What the kernel may hold of what the port sends: little where packets wait for the port in the switch. */
void ps_packet_port_size_kernel_queue(struct ps_port *port) {
    const struct ps_pipeline *p = port->sw->pipeline;
    if (port->tx_fd < 0) return;
    if (p && p->program->flags & PS_PROGRAM_WAITS_FOR_PORTS)
        (void)set_option(port->tx_fd, SOL_SOCKET, SO_SNDBUF, PS_KERNEL_BYTES_WAITING);
    else
        set_buffer(port->tx_fd, SO_SNDBUFFORCE, SO_SNDBUF);
}

static bool open_sockets(struct ps_port *port, int index, const char **what) {
    struct packet_mreq promiscuous = {.mr_ifindex = index, .mr_type = PACKET_MR_PROMISC};
    *what = "a packet socket cannot be made";
    int rx = port->rx_fd = new_socket(), tx = port->tx_fd = new_socket();
    if (rx < 0 || tx < 0) return false;
    *what = "the kernel lacks an option of packet sockets (Linux 4.20 or later is needed)";
    if (set_option(rx, SOL_PACKET, PACKET_VNET_HDR, 1) != 0 || set_option(tx, SOL_PACKET, PACKET_VNET_HDR, 1) != 0 ||
        set_option(rx, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1) != 0 ||
        set_option(rx, SOL_PACKET, PACKET_AUXDATA, 1) != 0)
        return false;
    set_buffer(rx, SO_RCVBUFFORCE, SO_RCVBUF);
    ps_packet_port_size_kernel_queue(port);
    *what = "the interface cannot be used";
    return bind_to(tx, index, 0) == 0 && bind_to(rx, index, ETH_P_ALL) == 0 &&
           setsockopt(rx, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) == 0;
}

/* Whether the interface is up and has a carrier. IFF_RUNNING does not serve: it follows the carrier up to a second
 * late. */
static bool usable(const struct packet_port *p, int fd) {
    struct ethtool_value link = {.cmd = ETHTOOL_GLINK};
    struct ifreq request = {0};
    memcpy(request.ifr_name, p->name, IFNAMSIZ);
    if (ioctl(fd, SIOCGIFFLAGS, &request) != 0 || !(request.ifr_flags & IFF_UP)) return false;
    request.ifr_data = (char *)&link;
    return ioctl(fd, SIOCETHTOOL, &request) != 0 || link.data != 0; /* a device that cannot say counts as having one */
}

static uint32_t frame_bytes_max(const struct packet_port *p, int fd) {
    struct ifreq request = {0};
    memcpy(request.ifr_name, p->name, IFNAMSIZ);
    return ioctl(fd, SIOCGIFMTU, &request) == 0 ? (uint32_t)request.ifr_mtu + ETH_HLEN : 0;
}

static void close_sockets(struct ps_port *port) {
    ps_port_unregister(port);
    if (port->rx_fd >= 0) close(port->rx_fd);
    if (port->tx_fd >= 0) close(port->tx_fd);
    port->rx_fd = port->tx_fd = -1;
}

static bool reopen(struct ps_port *port) {
    struct packet_port *p = port->impl;
    const char *what;
    int index = (int)if_nametoindex(p->name);
    if (index == 0) return false;
    p->index = index;
    if (open_sockets(port, index, &what) && ps_port_register(port) == 0) return true;
    close_sockets(port);
    return false;
}

/* Some interface changed: checks whether this port's is still the same one, and up. */
void ps_packet_port_link_changed(struct ps_port *port) {
    struct packet_port *p = port->impl;
    if (port->rx_fd >= 0 && (int)if_nametoindex(p->name) != p->index) close_sockets(port);
    if (port->rx_fd < 0 && !reopen(port)) {
        ps_port_set_up(port, false);
        return;
    }
    p->frame_bytes_max = frame_bytes_max(p, port->rx_fd);
    ps_port_set_up(port, usable(p, port->rx_fd));
}

/* ------------------------------------------------------------------ receiving */

static int fill_buffers(struct ps_port *port, struct packet_port *p) {
    for (int i = 0; i < PS_BURST; i++) {
        if (!p->buffers[i]) {
            struct ps_buffer *b = ps_buffer_get(&port->sw->pool);
            if (!b) return i;
            p->buffers[i] = b;
            p->rx_parts[i] = (struct iovec){b->bytes - VNET_BYTES, PS_FRAME_BYTES_MAX + VNET_BYTES};
            p->rx[i].msg_hdr =
                (struct msghdr){.msg_iov = &p->rx_parts[i], .msg_iovlen = 1, .msg_control = p->control[i]};
        }
        p->rx[i].msg_hdr.msg_controllen = CONTROL_BYTES;
        p->rx[i].msg_hdr.msg_flags = 0;
    }
    return PS_BURST;
}

static void restore_vlan(struct ps_buffer *b, struct msghdr *message) {
    struct cmsghdr *c = CMSG_FIRSTHDR(message);
    if (!c || c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) return;
    const struct tpacket_auxdata *aux = (const struct tpacket_auxdata *)(const void *)CMSG_DATA(c);
    if (PS_LIKELY(!(aux->tp_status & TP_STATUS_VLAN_VALID)) || b->length < 12) return;
    uint16_t tpid = aux->tp_status & TP_STATUS_VLAN_TPID_VALID ? aux->tp_vlan_tpid : ETH_P_8021Q;
    b->bytes -= VLAN_BYTES;
    memmove(b->bytes, b->bytes + VLAN_BYTES, 12);
    ps_store16(b->bytes + 12, tpid);
    ps_store16(b->bytes + 14, aux->tp_vlan_tci);
    b->length += VLAN_BYTES;
    if (b->vnet.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) b->vnet.csum_start += VLAN_BYTES;
    if (b->vnet.hdr_len) b->vnet.hdr_len += VLAN_BYTES;
}

static void receive_failed(struct ps_port *port) {
    if (errno == ENETDOWN || errno == ENXIO || errno == ENODEV) ps_packet_port_link_changed(port);
}

static int packet_receive(struct ps_port *port) {
    struct packet_port *p = port->impl;
    int room = fill_buffers(port, p);
    if (room == 0) {
        port->sw->stats.no_buffer++;
        return 0;
    }
    int count = recvmmsg(port->rx_fd, p->rx, (unsigned)room, MSG_DONTWAIT | MSG_TRUNC, NULL);
    if (count < 0) {
        receive_failed(port);
        return 0;
    }
    for (int i = 0; i < count; i++) {
        struct ps_buffer *b = p->buffers[i];
        uint32_t length = p->rx[i].msg_len;
        if (length <= VNET_BYTES || length > PS_FRAME_BYTES_MAX + VNET_BYTES) {
            port->stats.rx_dropped++;
            continue;
        }
        p->buffers[i] = NULL;
        b->length = length - VNET_BYTES;
        memcpy(&b->vnet, b->bytes - VNET_BYTES, VNET_BYTES);
        b->vnet.flags &= VIRTIO_NET_HDR_F_NEEDS_CSUM;
        restore_vlan(b, &p->rx[i].msg_hdr);
        ps_port_received(port, b);
        if (port->rx_fd < 0) return i + 1;
    }
    return count;
}

/* ------------------------------------------------------------------ sending */

/* Returns how many parts it has. */
static int fill_one(struct packet_port *p, int i, const struct ps_tx *tx, struct iovec *parts) {
    int count = 0;
    if (PS_LIKELY(ps_vnet_plain(&tx->vnet))) { /* zeros from the head room: one part less for the kernel */
        uint8_t *start = tx->head->bytes - VNET_BYTES;
        memset(start, 0, VNET_BYTES);
        parts[count++] = (struct iovec){start, VNET_BYTES + tx->head_bytes};
    } else { /* not in the head room: copies of one packet share the head, but their virtio headers may differ */
        p->tx_vnet[i] = tx->vnet;
        parts[count++] = (struct iovec){&p->tx_vnet[i], VNET_BYTES};
        parts[count++] = (struct iovec){tx->head->bytes, tx->head_bytes};
    }
    if (tx->payload_bytes) parts[count++] = (struct iovec){(void *)(uintptr_t)tx->payload, tx->payload_bytes};
    return count;
}

/* The same for several that leave as one. */
static int fill_joined(struct ps_joined *joined, const struct ps_tx *items, uint32_t packets, struct iovec *parts) {
    int count = 0;
    parts[count++] = (struct iovec){&joined->vnet, VNET_BYTES};
    parts[count++] = (struct iovec){joined->header, joined->header_bytes};
    for (uint32_t i = 0; i < packets; i++) {
        const struct ps_tx *tx = &items[i];
        uint32_t in_head = (uint32_t)ps_min64(joined->header_bytes, tx->head_bytes);
        uint32_t in_payload = joined->header_bytes - in_head;
        if (tx->head_bytes > in_head)
            parts[count++] = (struct iovec){tx->head->bytes + in_head, tx->head_bytes - in_head};
        if (tx->payload_bytes > in_payload)
            parts[count++] =
                (struct iovec){(void *)(uintptr_t)(tx->payload + in_payload), tx->payload_bytes - in_payload};
    }
    return count;
}

/* Returns how many messages these packets make. */
static int fill_messages(struct packet_port *p, const struct ps_tx *items, int count) {
    struct iovec *parts = p->tx_parts;
    struct ps_joined *joined = p->tx_joined;
    int messages = 0;
    for (int i = 0; i < count; messages++) {
        uint32_t packets = p->one_by_one ? 1 : ps_join(&items[i], (uint32_t)(count - i), p->frame_bytes_max, joined);
        int filled =
            packets > 1 ? fill_joined(joined++, &items[i], packets, parts) : fill_one(p, messages, &items[i], parts);
        p->tx[messages].msg_hdr = (struct msghdr){.msg_iov = parts, .msg_iovlen = (size_t)filled};
        p->tx_items[messages] = packets;
        parts += filled;
        i += (int)packets;
    }
    return messages;
}

/* How many packets these messages carry, counted as sent. */
static int count_sent(struct ps_port *port, const uint32_t *packets, int messages, const struct ps_tx *items) {
    int count = 0;
    for (int i = 0; i < messages; i++)
        for (uint32_t k = 0; k < packets[i]; k++, count++) {
            port->stats.tx_packets++;
            port->stats.tx_bytes += ps_tx_bytes(&items[count]);
        }
    return count;
}

static int packet_send(struct ps_port *port, const struct ps_tx *items, int count) {
    struct packet_port *p = port->impl;
    if (port->tx_fd < 0) {
        port->stats.tx_dropped += (uint64_t)count;
        return count;
    }
    int messages = fill_messages(p, items, count), done = 0; /* `done` packets */
    for (int i = 0; i < messages;) {
        int sent = sendmmsg(port->tx_fd, p->tx + i, (unsigned)(messages - i), MSG_DONTWAIT);
        if (sent > 0) {
            done += count_sent(port, p->tx_items + i, sent, items + done);
            i += sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return done;
        } else if (errno == ENETDOWN || errno == ENXIO || errno == ENODEV) {
            port->stats.tx_dropped += (uint64_t)(count - done);
            return count;
        } else if (errno == EINVAL && p->tx_items[i] > 1) { /* a kernel before 6.2 */
            p->one_by_one = true;
            return done + packet_send(port, items + done, count - done);
        } else if (errno !=
                   EINTR) { /* ENOBUFS: the qdisc dropped it; EMSGSIZE: longer than the MTU; EINVAL: not a frame */
            port->stats.tx_dropped += p->tx_items[i];
            done += (int)p->tx_items[i];
            i++;
        }
    }
    return count;
}

/* ------------------------------------------------------------------ life */

static void packet_close(struct ps_port *port) {
    struct packet_port *p = port->impl;
    close_sockets(port);
    for (int i = 0; p && i < PS_BURST; i++)
        if (p->buffers[i]) ps_buffer_put(&port->sw->pool, p->buffers[i]);
    free(p);
    port->impl = NULL;
}

static void packet_tick(struct ps_port *port) {
    if (!port->up) ps_packet_port_link_changed(port);
}

static const struct ps_port_ops PACKET_OPS = {packet_receive, packet_send, packet_close, packet_tick};

bool ps_port_is_packet(const struct ps_port *port) { return port->ops == &PACKET_OPS; }

int ps_packet_port_open(struct ps_port *port, const char *name, char *error, size_t error_bytes) {
    struct packet_port *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p) {
        snprintf(error, error_bytes, "out of memory");
        return -1;
    }
    memset(p, 0, sizeof *p);
    port->impl = p;
    port->ops = &PACKET_OPS;
    port->carries_vnet = true;
    if (strlen(name) >= IFNAMSIZ) {
        snprintf(error, error_bytes, "interface %s: the name is too long", name);
        return -1;
    }
    strcpy(p->name, name);
    p->index = (int)if_nametoindex(name);
    if (p->index == 0) {
        snprintf(error, error_bytes, "interface %s: no such interface (`ip link` shows those there are)", name);
        return -1;
    }
    const char *what;
    if (!open_sockets(port, p->index, &what)) {
        if (errno == EPERM || errno == EACCES)
            snprintf(error, error_bytes,
                     "interface %s: Permission denied: packet sockets need root or CAP_NET_RAW (systemd: "
                     "AmbientCapabilities=CAP_NET_RAW; containers: --cap-add NET_RAW)",
                     name);
        else
            snprintf(error, error_bytes, "interface %s: %s: %s", name, what, strerror(errno));
        return -1;
    }
    return 0;
}
