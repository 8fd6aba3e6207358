"""Networks: links, addresses, names, ports, and what may leave. docs/networks.md

::

    model         what is asked for, and what is known
    asked         what a spec says, judged; what may leave a sandbox that says nothing of it
    records       networks on disk: which there are, their subnets
    leases        addresses on disk: which is chosen, who has which, and whether that sandbox lives
    attach        a sandbox on its networks, in order: ports, namespace, lease, table, links
    barriers      tables of others that stop what is sent on
    ports         ports of the host, bound for as long as the sandbox lives
    bridges       the bridge of a network
    admission     when the table is changed: leases that come, end, or were left by the dead; a network that goes
    conntrack     connections of an address, forgotten before the next one has it
    sysctls       settings of the kernel
    preview       all of that without doing it, for ``run --explain``
    table         the table of a state directory, as a function of its networks and leases; where ``-p`` becomes an element
    rules         its rules
    words         what rules are made of: what they compare and do
    host          sockets, and which links there are, in our own network namespace or another one
    netlink       requests to the kernel, many at once
    rtnetlink     links, addresses, routes
    nftables      tables, chains, sets and their elements, and one transaction of them
    nameservers   which servers a sandbox asks for names
    resolv_conf   the file that says so
    resolver      names: a small process for each network that has some, and what it does:
    name_server     questions of sandboxes, their bounds, and when it ends
    dns_tcp         questions over TCP
    rate_limit      how much each address may ask, and who is shut out for a while
    residents       who is on the network
    elsewhere       who is on the other networks of one that asks
    name_rules      rules by name, and which addresses a name may lead to
    upstreams       the host's name servers
    dns             messages
    packet_filter   senders whose packets are dropped
    pasta         a user's sandboxes, without root
"""
