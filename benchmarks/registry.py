"""docker-registry on a free port of 127.0.0.1, and what it takes to put an OCI layout into it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_WAIT = 15.0


class NoRegistry(Exception):
    """Why there is none."""


@dataclass(frozen=True, slots=True)
class Served:
    port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def push(self, layout: Path, repository: str, tag: str) -> str:
        """All blobs of a layout with one image; its reference."""
        described = json.loads((layout / "index.json").read_text())["manifests"][0]
        manifest = (layout / "blobs" / described["digest"].replace(":", "/")).read_bytes()
        content = json.loads(manifest)
        for blob in (content["config"], *content["layers"]):
            location = self._ask("POST", f"/v2/{repository}/blobs/uploads/", 202).getheader("Location") or ""
            path = location[location.index("/v2/") :]
            with open(layout / "blobs" / blob["digest"].replace(":", "/"), "rb") as data:
                headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob["size"])}
                self._ask("PUT", f"{path}{'&' if '?' in path else '?'}digest={blob['digest']}", 201, data, headers)
        self._ask("PUT", f"/v2/{repository}/manifests/{tag}", 201, manifest, {"Content-Type": described["mediaType"]})
        return f"{self.host}/{repository}:{tag}"

    def _ask(self, method: str, path: str, wanted: int, body: object = None, headers: dict[str, str] | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})  # type: ignore[arg-type]
            response = connection.getresponse()
            said = response.read()
            if response.status != wanted:
                raise NoRegistry(f"{method} {path.partition('?')[0]}: {response.status} {said[:200]!r}")
            return response
        finally:
            connection.close()


@contextmanager
def registry(place: Path) -> Iterator[Served]:
    """A registry of its own, below ``place``. ``NoRegistry``"""
    program = shutil.which("docker-registry")
    if program is None:
        raise NoRegistry("docker-registry is not installed (apt-get install docker-registry)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = place / f"registry-{os.urandom(3).hex()}"
    home.mkdir()
    (home / "config.yml").write_text(
        f'version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: "{home}/data"}}}}\n'
        f'http: {{addr: "127.0.0.1:{port}"}}\n'
    )
    with open(home / "log", "wb") as log:
        process = subprocess.Popen([program, "serve", home / "config.yml"], stdout=log, stderr=log)
    try:
        until = time.monotonic() + _WAIT
        while True:
            try:
                Served(port)._ask("GET", "/v2/", 200)
                break
            except (OSError, NoRegistry):
                if process.poll() is not None or time.monotonic() > until:
                    raise NoRegistry("docker-registry does not start: " + (home / "log").read_text()[-200:]) from None
                time.sleep(0.05)
        yield Served(port)
    finally:
        process.terminate()
        process.wait(30)


def registries_conf(place: Path, host: str) -> Path:
    """A registries.conf that lets clients ask ``host`` without TLS."""
    path = place / "registries.conf"
    path.write_text(f'[[registry]]\nlocation = "{host}"\ninsecure = true\n')
    return path
