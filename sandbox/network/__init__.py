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
    resolver      names: a small process for each network that has some
    pasta         a user's sandboxes, without root
"""
