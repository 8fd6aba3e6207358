"""Networks: links, addresses, names, ports, and what may leave. docs/networks.md

::

    model         what is asked for, and what is known
    netlink       requests to the kernel, many at once
    rtnetlink     links, addresses, routes
    nftables      tables, chains, sets and their elements, and one transaction of them
    words         what rules are made of: what they compare and do
    table         the table of a state directory, as a function of its networks and leases
    rules         its rules
    records       networks on disk
    leases        addresses on disk: who has which, and whether he lives
    attach        a sandbox on its networks
    resolver      names: a small process for each network that has some, and what it does:
    name_server     questions of sandboxes, and their bounds
    residents       who is on the network
    elsewhere       who is on the other networks of one that asks
    name_rules      rules by name, and which addresses a name may lead to
    upstreams       the host's name servers
    dns             messages
    packet_filter   senders whose packets are dropped
    pasta         a user's sandboxes, without root
"""
