"""What answers beside a sandbox: ``echo/ADDRESS/PORT`` says by tcp and udp who asked, ``ask/ADDRESS/PORT`` asks others for its callers,
``names/ADDRESS/PORT`` says of each name that it is ``PUBLIC``."""

from __future__ import annotations

import socket
import sys
import threading


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def ask(protocol: str, address: str, port: int, timeout: float = 2.0) -> str:
    """What an echo there answers, or the error. The asker speaks first."""
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    try:
        with socket.socket(family(address), kind) as asking:
            asking.settimeout(timeout)
            asking.connect(socket.getaddrinfo(address, port, family(address), kind)[0][4])
            asking.sendall(b"hello")
            return asking.recv(200).decode() or "closed"
    except OSError as error:
        return f"error: {error}"


def _tcp(address: str, port: int, answer: bool) -> None:
    with socket.create_server((address, port), family=family(address)) as server:
        while True:
            caller, known = server.accept()
            with caller:
                asked = caller.recv(200).decode()
                if answer:
                    caller.sendall(f"tcp {known[0]}".encode())
                else:
                    protocol, host, number = asked.split()
                    caller.sendall(ask(protocol, host, int(number)).encode())


def _udp(address: str, port: int) -> None:
    with socket.socket(family(address), socket.SOCK_DGRAM) as server:
        server.bind((address, port))
        while True:
            _, known = server.recvfrom(200)
            server.sendto(f"udp {known[0]}".encode(), known)


PUBLIC = "1.2.3.4"


def _names(address: str, port: int) -> None:
    """Answers questions for addresses of IPv4; of IPv6 there are none. RFC 1035"""
    with socket.socket(family(address), socket.SOCK_DGRAM) as server:
        server.bind((address, port))
        while True:
            asked, known = server.recvfrom(512)
            question = asked[12 : asked.index(0, 12) + 5]
            one = question[-4:-2] == b"\0\1"
            answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(PUBLIC) if one else b""
            server.sendto(asked[:2] + b"\x81\x80\0\1\0" + bytes([one]) + b"\0\0\0\0" + question + answer, known)


def main(words: list[str]) -> None:
    for word in words:
        what, address, port = word.split("/")
        if what == "names":
            threading.Thread(target=_names, args=(address, int(port))).start()
            continue
        threading.Thread(target=_tcp, args=(address, int(port), what == "echo")).start()
        if what == "echo":
            threading.Thread(target=_udp, args=(address, int(port))).start()


if __name__ == "__main__":
    main(sys.argv[1:])
