"""The programs of ``examples/``, run as they stand, on the host's image or on one that is made here."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import subprocess
import sys
import types
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from support import boxes
from support.requires import check, requires

import dockless
from dockless import aio
from dockless.cgroups import find_delegation

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
pytestmark = [
    requires("userns", "overlay"),
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="only the installed package is here, not the sources"),
]


def example(name: str) -> types.ModuleType:
    spec = spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where pydantic looks for the types of a model's fields
    spec.loader.exec_module(module)
    return module


def test_the_agents_tool(capsys):
    example("agent").main("host")
    said = capsys.readouterr().out
    assert "TypeError" in said and "[exit code 1]" in said
    assert " more bytes]\n[timed out and was killed]" in said
    assert said.endswith('{"total": 200}\n')


def test_snippets(capsys):
    asyncio.run(example("snippets").main("host"))
    said = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert said == ["42", "", "False", "it took too long", "ZeroDivisionError: division by zero"]


def test_what_is_served(capsys):
    asyncio.run(example("served").main("host"))
    assert capsys.readouterr().out.splitlines() == [
        "[2, 40, 600]", "kept: 2", "kept: 40", "kept: 600", "create ", "start ", "health_status healthy", "True",
    ]  # fmt: skip
    assert not dockless.list(labels={"example": "served"}) and not dockless.volumes.list(labels={"example": "served"})


def test_what_a_hostile_step_does_stays_inside():
    agent = example("agent")
    with agent.workspace("host") as box:
        assert "[exit code 1]" in agent.step(box, "open('/etc/shadow')")
        assert agent.step(box, "import socket; print(socket.if_nameindex())") == "[(1, 'lo')]"
        assert agent.step(box, "print('\\udc80'.encode(errors='surrogateescape'))") == "b'\\x80'"
        assert "No space left" in agent.step(box, "import os; f = open('large', 'wb'); os.posix_fallocate(f.fileno(), 0, 300 << 20)")
        assert agent.step(box, "import os; os.remove('large'); os.kill(-1, 9)") in ("", "[killed by signal 9]")  # everything but itself
        box.wait(boxes.DEADLINE)
        with pytest.raises(dockless.SandboxGone):
            agent.step(box, "print('again')")


@requires("cgroup2:memory", "cgroup2:pids")
def test_a_step_that_takes_too_much_is_told():
    agent = example("agent")
    with agent.workspace("host") as box:
        assert agent.step(box, "all = b'x' * (1 << 30)", seconds=60) == "[out of memory (killed by signal 9)]"
        assert agent.step(box, "print('still here')", seconds=60) == "still here"
        said = agent.step(box, "import os\nwhile True:\n    os.fork() or os.execlp('sleep', 'sleep', '60')", seconds=60)
        assert "Resource temporarily unavailable" in said and said.endswith("[exit code 1]")


@pytest.mark.skipif(find_delegation(ask_systemd=False).path is None, reason="no cgroup v2 of our own, by which something could be frozen")
def test_tries_on_forks(tmp_path, capsys):
    example("tries").main(boxes.load(tmp_path))
    assert capsys.readouterr().out.splitlines() == [
        "rm add.sh: failed",
        "echo echo 5 > add.sh: failed",
        "sed -i s/-/+/ add.sh: passed",
        "echo $(($1 + $2))",
        "kept as docker.io/library/tries:best",
    ]
    assert not dockless.list(labels={"example": "tries"})


def test_a_batch(capsys):
    example("batch").main("host")
    *counts, _ = capsys.readouterr().out.splitlines()
    assert sorted(counts) == ["   1  exit code 1", "   1  timed out and was killed", "   1  wrong", "  97  right"]


def test_a_batch_that_is_cancelled_leaves_nothing():
    batch = example("batch")

    async def main():
        running = asyncio.create_task(batch.run_all("host", ["import time; time.sleep(1000)"] * 100))
        while not dockless.list():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert dockless.list() == []

    asyncio.run(main())


def test_the_fixture_for_pytest(tmp_path):
    boxes.load(tmp_path, name="debian:12-slim")
    words = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--basetemp", tmp_path / "pytest"]
    ran = subprocess.run([*words, EXAMPLES / "test_machine.py"], cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0, ran.stdout
    assert "5 passed" in ran.stdout


# -- the service


@pytest.fixture
def service(monkeypatch):
    check("module:fastapi")
    monkeypatch.setenv("IMAGE", "host")
    return example("service")


async def asked(service: types.ModuleType, path: str, program: object, leave_at: bytes = b"\xff") -> tuple[int, bytes]:
    """Status and body of an answer, asked for as a server does it. Whoever asks goes away when ``leave_at`` has come."""
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "query_string": b"", "root_path": "", "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    requests = [{"type": "http.request", "body": json.dumps(program).encode()}]
    left = asyncio.Event()
    status, body = 0, b""

    async def receive():
        if requests:
            return requests.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")
        if leave_at in body:
            assert len(await aio.list()) == 1
            left.set()

    await service.app(scope, receive, send)
    return status, body


def test_the_service_runs_programs(service):
    async def run(**program):
        status, body = await asked(service, "/run", program)
        return status, json.loads(body)

    async def main():
        status, answer = await run(code="import sys; print(sys.stdin.read()); sys.exit(3)", input="caf\xe9")
        assert (status, answer.pop("seconds") > 0) == (200, True)
        assert answer == {"output": "caf\xe9\n", "errors": "", "ended": "exit code 3", "exit_code": 3}
        assert (await run(code="while True: pass"))[1]["exit_code"] == 124
        assert len((await run(code="print('x' * (1 << 20))"))[1]["output"]) == 1 << 16
        for wrong in ({"code": "\0"}, {"code": "x" * 20_001}, {}):
            assert (await run(**wrong))[0] == 422
        assert await asked(service, "/stream", {"code": "print(1); print(2)"}) == (200, b"1\n2\n")

    asyncio.run(main())


def test_whoever_leaves_the_stream_ends_it(service):
    async def main():
        program = {"code": "import time; print('first', flush=True); time.sleep(1000)"}
        assert await asked(service, "/stream", program, leave_at=b"first\n") == (200, b"first\n")
        assert await aio.list() == []

    asyncio.run(main())


# -- notebooks


async def written(cells: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What each cell writes. They share one namespace and one event loop, as in a kernel."""
    namespace: dict[str, object] = {}
    found = []
    for number, source in enumerate(cells, 1):
        code = compile(source, f"cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        ended = types.FunctionType(code, namespace)()
        if inspect.isawaitable(ended):
            await ended
        found.append(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_writes_what_it_shows(path, capsys):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    shown = ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in cells]
    assert asyncio.run(written(["".join(cell["source"]) for cell in cells], capsys)) == shown


def test_there_is_a_test_for_each_example():
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {
        "agent.py", "batch.py", "served.py", "service.py", "snippets.py", "test_machine.py", "tries.py", *(path.name for path in NOTEBOOKS),
        *(f"{name}{ending}" for name in ("distributed", "parameter_server") for ending in (".py", ".toml")),  # test_distributed.py
    }  # fmt: skip
    assert NOTEBOOKS
