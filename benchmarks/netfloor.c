/* What the kernel takes for a sandbox's network, without anything else: a network namespace, a pair of links into it, one of them a port of a bridge, an
 * address and a route, by raw netlink in as few calls as can be; then the namespace is let go.
 *
 *     netfloor BRIDGE-INDEX ROUNDS      prints nanoseconds of each round
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

static char buffer[8192];
static size_t used;
static int requests;

static struct nlmsghdr *begin(int type, int flags, const void *fixed, size_t size) {
    struct nlmsghdr *h = (void *)(buffer + used);
    memset(h, 0, NLMSG_LENGTH(size));
    h->nlmsg_type = type;
    h->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    h->nlmsg_seq = ++requests;
    h->nlmsg_len = NLMSG_LENGTH(size);
    memcpy(NLMSG_DATA(h), fixed, size);
    return h;
}

static struct rtattr *put(struct nlmsghdr *h, int type, const void *value, size_t size) {
    struct rtattr *a = (void *)((char *)h + NLMSG_ALIGN(h->nlmsg_len));
    a->rta_type = type;
    a->rta_len = RTA_LENGTH(size);
    if (size) memcpy(RTA_DATA(a), value, size);
    h->nlmsg_len = NLMSG_ALIGN(h->nlmsg_len) + RTA_ALIGN(a->rta_len);
    return a;
}

static void close_nest(struct nlmsghdr *h, struct rtattr *a) { a->rta_len = (char *)h + h->nlmsg_len - (char *)a; }
static void end(struct nlmsghdr *h) { used += NLMSG_ALIGN(h->nlmsg_len); }

static void carry_out(int fd) {
    if (send(fd, buffer, used, 0) < 0) { perror("send"); exit(1); }
    static char answers[65536];
    for (int left = requests; left > 0;) {
        ssize_t got = recv(fd, answers, sizeof answers, 0);
        int size = (int)got;
        for (struct nlmsghdr *h = (void *)answers; NLMSG_OK(h, (unsigned)size); h = NLMSG_NEXT(h, size)) {
            struct nlmsgerr *e = NLMSG_DATA(h);
            if (h->nlmsg_type == NLMSG_ERROR && e->error) { fprintf(stderr, "request %u: %s\n", h->nlmsg_seq, strerror(-e->error)); exit(1); }
            left--;
        }
    }
    used = 0;
    requests = 0;
}

static void configure(int fd, int index) {
    struct ifinfomsg lo = {.ifi_index = 1, .ifi_flags = IFF_UP, .ifi_change = IFF_UP}, up = lo;
    up.ifi_index = index;
    struct ifaddrmsg a = {.ifa_family = AF_INET, .ifa_prefixlen = 24, .ifa_index = index};
    struct rtmsg r = {.rtm_family = AF_INET, .rtm_table = RT_TABLE_MAIN, .rtm_protocol = RTPROT_BOOT, .rtm_type = RTN_UNICAST};
    struct in_addr own, way;
    inet_pton(AF_INET, "10.99.0.2", &own);
    inet_pton(AF_INET, "10.99.0.1", &way);
    end(begin(RTM_NEWLINK, 0, &lo, sizeof lo));
    struct nlmsghdr *h = begin(RTM_NEWADDR, NLM_F_CREATE, &a, sizeof a);
    put(h, IFA_LOCAL, &own, 4);
    put(h, IFA_ADDRESS, &own, 4);
    end(h);
    end(begin(RTM_NEWLINK, 0, &up, sizeof up));
    h = begin(RTM_NEWROUTE, NLM_F_CREATE, &r, sizeof r);
    put(h, RTA_GATEWAY, &way, 4);
    put(h, RTA_OIF, &index, 4);
    end(h);
    carry_out(fd);
}

int main(int argc, char **argv) {
    int bridge = argc > 1 ? atoi(argv[1]) : 0, rounds = argc > 2 ? atoi(argv[2]) : 1;
    int host = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), here = open("/proc/self/ns/net", O_RDONLY);
    for (int i = 0; i < rounds; i++) {
        struct timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        if (unshare(CLONE_NEWNET)) { perror("unshare"); return 1; }
        int inside = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), netns = open("/proc/self/ns/net", O_RDONLY);
        setns(here, CLONE_NEWNET);
        struct ifinfomsg link = {.ifi_flags = IFF_UP, .ifi_change = IFF_UP};
        char name[16];
        snprintf(name, sizeof name, "fl%dx%d", (int)getpid(), i); /* the last one may still be there */
        struct nlmsghdr *h = begin(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link, sizeof link);
        put(h, IFLA_IFNAME, name, strlen(name) + 1);
        put(h, IFLA_MASTER, &bridge, 4);
        struct rtattr *info = put(h, IFLA_LINKINFO, NULL, 0);
        put(h, IFLA_INFO_KIND, "veth", 5);
        struct rtattr *data = put(h, IFLA_INFO_DATA, NULL, 0), *peer;
        struct ifinfomsg none = {0};
        peer = put(h, VETH_INFO_PEER, &none, sizeof none);
        put(h, IFLA_IFNAME, "eth0", 5);
        put(h, IFLA_NET_NS_FD, &netns, 4);
        close_nest(h, peer);
        close_nest(h, data);
        close_nest(h, info);
        end(h);
        carry_out(host);
        configure(inside, 2);
        clock_gettime(CLOCK_MONOTONIC, &after);
        close(inside);
        close(netns);
        printf("%lld\n", (after.tv_sec - before.tv_sec) * 1000000000ll + after.tv_nsec - before.tv_nsec);
        usleep(20000); /* what the kernel clears in the background is not measured */
    }
    return 0;
}
