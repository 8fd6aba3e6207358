"""Training as TensorFlow's ParameterServerStrategy does it, without TensorFlow: all that a process knows of the others is in TF_CONFIG.

dockless submit examples/parameter_server.toml      # from the directory above

The servers (ps) keep the parameters, a part each; the chief and the workers fetch them, and send back what they learned; the evaluator
looks how good they are. When all workers have said so the chief ends, and with it the job.
"""

from __future__ import annotations

import json
import os
import random
import socket
import socketserver
import sys
import threading
import time
from typing import Any

STEPS = 200
RATE = 0.05
WANTED = (2.0, -3.0, 0.5, 1.0)
PATIENCE = 60.0


def ask(address: str, **question: Any) -> Any:
    """Send a line of JSON and return the answer. A server that does not listen yet is asked again; whatever else is wrong is an error."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection, connection.makefile("rw") as stream:
                stream.write(json.dumps(question) + "\n")
                stream.flush()
                return json.loads(stream.readline())
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Server(socketserver.ThreadingTCPServer):
    """Answers each line on its port with ``answer``."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, address: str) -> None:
        super().__init__(("", int(address.rpartition(":")[2])), Handler)
        self.lock = threading.Lock()
        self.values: dict[str, float] = {}
        self.done: set[str] = set()

    def answer(self, question: dict[str, Any]) -> Any:
        with self.lock:
            for name, change in question.get("add", {}).items():
                self.values[name] = self.values.get(name, 0.0) + change
            self.done.update(question.get("done", ()))
            return self.values


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Server)
        self.wfile.write(json.dumps(self.server.answer(json.loads(self.rfile.readline()))).encode() + b"\n")


def fetch(servers: list[str]) -> list[float]:
    """The parameters as they are now, from all servers."""
    found = {name: value for server in servers for name, value in ask(server).items()}
    return [found.get(str(place), 0.0) for place in range(len(WANTED))]


def send(servers: list[str], changes: list[float]) -> None:
    for number, server in enumerate(servers):
        ask(server, add={str(place): change for place, change in enumerate(changes) if place % len(servers) == number})


def loss(parameters: list[float]) -> float:
    return sum((one - wanted) ** 2 for one, wanted in zip(parameters, WANTED, strict=True))


def train(servers: list[str], seed: str) -> None:
    chance = random.Random(seed)
    for _ in range(STEPS):
        parameters = fetch(servers)
        data = [chance.gauss(0, 1) for _ in WANTED]
        error = sum(x * (wanted - one) for x, wanted, one in zip(data, WANTED, parameters, strict=True))
        send(servers, [RATE * error * x for x in data])


def main() -> None:
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, kind, index = config["cluster"], config["task"]["type"], config["task"]["index"]
    servers, own = cluster["ps"], f"{kind}-{index}"
    if kind == "ps":
        Server(cluster[kind][index]).serve_forever()  # until the job is over
    elif kind == "evaluator":
        while True:
            print(f"loss {loss(fetch(servers)):.3f}", flush=True)
            time.sleep(0.2)
    elif kind == "chief":
        server = Server(cluster[kind][index])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        train(servers, own)
        wanted = {f"worker-{number}" for number in range(len(cluster.get("worker", [])))}
        deadline = time.monotonic() + PATIENCE
        while not wanted <= server.done:
            if time.monotonic() > deadline:
                sys.exit(f"no word from {', '.join(sorted(wanted - server.done))}")
            time.sleep(0.05)
        print("trained", [round(value, 1) for value in fetch(servers)], "with", *sorted(server.done), flush=True)
    else:
        train(servers, own)
        ask(cluster["chief"][0], done=[own])
        print(f"{own} is done", flush=True)


if __name__ == "__main__":
    main()
