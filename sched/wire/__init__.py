"""Between clients and the daemon: protocol, both ends, what is answered."""
