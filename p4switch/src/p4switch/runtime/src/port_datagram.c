/* Ports on datagram sockets with one frame per datagram, as QEMU's `-netdev dgram` has them. A UNIX port receives on
 * one socket and sends on another: a socket connected to its peer would refuse datagrams of the socket that replaces
 * the peer after a restart. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "link.h"
#include "port_kinds.h"
#include "switch.h"

enum { SOCKET_BUFFER_BYTES = 4 << 20 };

struct datagram_port {
    struct sockaddr_un local, peer; /* UNIX */
    bool bound, connected;
    struct sockaddr_storage udp_peer;
    socklen_t udp_peer_bytes; /* 0: not known yet */
    struct ps_buffer *buffers[PS_BURST];
    struct mmsghdr rx[PS_BURST];
    struct iovec rx_parts[PS_BURST];
    struct sockaddr_storage from[PS_BURST];
    struct mmsghdr tx[PS_TX_BATCH];
    struct iovec tx_parts[PS_TX_BATCH][2];
};

static void set_buffer(int fd, int force, int plain) {
    int bytes = SOCKET_BUFFER_BYTES;
    if (setsockopt(fd, SOL_SOCKET, force, &bytes, sizeof bytes) != 0)
        (void)setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof bytes);
}

static void set_buffers(int fd) {
    set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF);
    set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF);
}

/* ------------------------------------------------------------------ receiving */

static int datagram_receive(struct ps_port *port) {
    struct datagram_port *p = port->impl;
    int room = 0;
    for (; room < PS_BURST; room++) {
        if (!p->buffers[room] && !(p->buffers[room] = ps_buffer_get(&port->sw->pool))) break;
        struct ps_buffer *b = p->buffers[room];
        p->rx_parts[room] = (struct iovec){b->bytes, PS_FRAME_BYTES_MAX};
        p->rx[room].msg_hdr = (struct msghdr){.msg_iov = &p->rx_parts[room], .msg_iovlen = 1};
        if (p->udp_peer_bytes == 0) {
            p->rx[room].msg_hdr.msg_name = &p->from[room];
            p->rx[room].msg_hdr.msg_namelen = sizeof p->from[room];
        }
    }
    if (room == 0) {
        port->sw->stats.no_buffer++;
        return 0;
    }
    int count = recvmmsg(port->rx_fd, p->rx, (unsigned)room, MSG_DONTWAIT, NULL);
    for (int i = 0; i < count; i++) {
        struct ps_buffer *b = p->buffers[i];
        struct msghdr *m = &p->rx[i].msg_hdr;
        if (port->tx_fd == port->rx_fd && p->udp_peer_bytes == 0 && m->msg_namelen) {
            memcpy(&p->udp_peer, m->msg_name, m->msg_namelen);
            p->udp_peer_bytes = m->msg_namelen;
        }
        if (p->rx[i].msg_len == 0 || (m->msg_flags & MSG_TRUNC)) {
            port->stats.rx_dropped++;
            continue;
        }
        p->buffers[i] = NULL;
        b->length = p->rx[i].msg_len;
        ps_port_received(port, b);
    }
    return count < 0 ? 0 : count;
}

/* ------------------------------------------------------------------ sending */

static bool unix_connect(struct ps_port *port, struct datagram_port *p) {
    if (!p->connected) p->connected = connect(port->tx_fd, (struct sockaddr *)&p->peer, sizeof p->peer) == 0;
    return p->connected;
}

static int datagram_send(struct ps_port *port, const struct ps_tx *items, int count) {
    struct datagram_port *p = port->impl;
    bool is_unix = port->tx_fd != port->rx_fd, retried = false;
    if (is_unix ? !unix_connect(port, p) : p->udp_peer_bytes == 0) {
        port->stats.tx_dropped += (uint64_t)count; /* no peer: lost, as on a cable without a far end */
        return count;
    }
    for (int i = 0; i < count; i++) {
        struct iovec *parts = p->tx_parts[i];
        parts[0] = (struct iovec){items[i].head->bytes, items[i].head_bytes};
        parts[1] = (struct iovec){(void *)(uintptr_t)items[i].payload, items[i].payload_bytes};
        p->tx[i].msg_hdr = (struct msghdr){.msg_iov = parts, .msg_iovlen = items[i].payload_bytes ? 2 : 1};
        if (!is_unix) {
            p->tx[i].msg_hdr.msg_name = &p->udp_peer;
            p->tx[i].msg_hdr.msg_namelen = p->udp_peer_bytes;
        }
    }
    for (int i = 0; i < count;) {
        int sent = sendmmsg(port->tx_fd, p->tx + i, (unsigned)(count - i), MSG_DONTWAIT | MSG_NOSIGNAL);
        for (int k = 0; k < sent; k++) {
            port->stats.tx_packets++;
            port->stats.tx_bytes += ps_tx_bytes(&items[i + k]);
        }
        if (sent > 0) {
            i += sent;
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) return i;
        if (errno == EINTR) continue;
        bool gone = errno == ECONNREFUSED || errno == ENOTCONN || errno == EPIPE || errno == ECONNRESET;
        if (is_unix && gone) {
            p->connected = false;
            if (!retried && unix_connect(port, p)) { /* the peer restarted, and its path leads to a new socket */
                retried = true;
                continue;
            }
            port->stats.tx_dropped += (uint64_t)(count - i);
            return count;
        }
        port->stats.tx_dropped++; /* EMSGSIZE, or an ICMP error of an earlier datagram */
        i++;
    }
    return count;
}

/* ------------------------------------------------------------------ life */

static void datagram_close(struct ps_port *port) {
    struct datagram_port *p = port->impl;
    if (port->tx_fd >= 0 && port->tx_fd != port->rx_fd) close(port->tx_fd);
    if (port->rx_fd >= 0) close(port->rx_fd);
    port->rx_fd = port->tx_fd = -1;
    if (!p) return;
    if (p->bound) unlink(p->local.sun_path);
    for (int i = 0; i < PS_BURST; i++)
        if (p->buffers[i]) ps_buffer_put(&port->sw->pool, p->buffers[i]);
    free(p);
    port->impl = NULL;
}

static void datagram_tick(struct ps_port *port) {
    struct datagram_port *p = port->impl;
    if (port->tx_fd != port->rx_fd && port->backlog.count) {
        (void)unix_connect(port, p);
        ps_port_writable(port);
    }
}

static const struct ps_port_ops DATAGRAM_OPS = {datagram_receive, datagram_send, datagram_close, datagram_tick};

static struct datagram_port *make(struct ps_port *port, char *error, size_t error_bytes) {
    struct datagram_port *p = calloc(1, sizeof *p);
    if (!p) snprintf(error, error_bytes, "out of memory");
    port->impl = p;
    port->ops = &DATAGRAM_OPS;
    return p;
}

static bool unix_address(struct sockaddr_un *address, const char *path, char *error, size_t error_bytes) {
    address->sun_family = AF_UNIX;
    if (strlen(path) < sizeof address->sun_path) {
        strcpy(address->sun_path, path);
        return true;
    }
    snprintf(error, error_bytes, "socket path %s: longer than the %zu bytes that UNIX sockets allow", path,
             sizeof address->sun_path - 1);
    return false;
}

/* A socket file that no process holds remains from a process that died. */
static bool stale(const struct sockaddr_un *address) {
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool refused =
        fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 && errno == ECONNREFUSED;
    if (fd >= 0) close(fd);
    return refused;
}

static const char *remedy(int error) {
    switch (error) {
    case EADDRINUSE:
        return ": another process has it; choose another own address";
    case EADDRNOTAVAIL:
        return ": no address of this machine (`ip address` shows those there are)";
    default:
        return "";
    }
}

int ps_unix_port_open(struct ps_port *port, const char *local, const char *peer, char *error, size_t error_bytes) {
    struct datagram_port *p = make(port, error, error_bytes);
    if (!p || !unix_address(&p->local, local, error, error_bytes) || !unix_address(&p->peer, peer, error, error_bytes))
        return -1;
    port->rx_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    port->tx_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (port->rx_fd < 0 || port->tx_fd < 0) {
        snprintf(error, error_bytes, "socket %s: %s", local, strerror(errno));
        return -1;
    }
    int result = bind(port->rx_fd, (struct sockaddr *)&p->local, sizeof p->local);
    if (result != 0 && errno == EADDRINUSE && stale(&p->local) && unlink(local) == 0)
        result = bind(port->rx_fd, (struct sockaddr *)&p->local, sizeof p->local);
    if (result != 0) {
        snprintf(error, error_bytes, "socket %s: %s%s", local, strerror(errno), remedy(errno));
        return -1;
    }
    p->bound = true;
    set_buffers(port->rx_fd);
    set_buffers(port->tx_fd);
    return 0;
}

static int resolve(const char *host, uint16_t number, struct sockaddr_storage *out, socklen_t *bytes) {
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found;
    snprintf(service, sizeof service, "%u", number);
    if (getaddrinfo(host, service, &hints, &found) != 0) return -1;
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

int ps_udp_port_open(struct ps_port *port, const char *local_host, uint16_t *local_port, const char *peer_host,
                     uint16_t peer_port, char *error, size_t error_bytes) {
    struct datagram_port *p = make(port, error, error_bytes);
    struct sockaddr_storage local;
    socklen_t bytes;
    if (!p) return -1;
    if (resolve(local_host, *local_port, &local, &bytes) != 0 ||
        (peer_host && resolve(peer_host, peer_port, &p->udp_peer, &p->udp_peer_bytes) != 0)) {
        snprintf(error, error_bytes, "UDP port %s -> %s: not a numeric address", local_host,
                 peer_host ? peer_host : "any");
        return -1;
    }
    port->rx_fd = port->tx_fd = socket(local.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (port->rx_fd < 0 || bind(port->rx_fd, (struct sockaddr *)&local, bytes) != 0) {
        snprintf(error, error_bytes, "UDP address %s port %u: %s%s", local_host, *local_port, strerror(errno),
                 remedy(errno));
        return -1;
    }
    set_buffers(port->rx_fd);
    bytes = sizeof local;
    (void)getsockname(port->rx_fd, (struct sockaddr *)&local, &bytes);
    *local_port = ntohs(local.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&local)->sin6_port
                                                    : ((struct sockaddr_in *)(void *)&local)->sin_port);
    return 0;
}
