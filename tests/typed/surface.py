"""What type checkers are to see of the public names: ``make check`` gives this file to mypy and pyright, nothing runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any, assert_type

import dockless
from dockless import DEVNULL, PIPE, Execution, Result, Sandbox, aio


def runs() -> None:
    assert_type(dockless.run("host", ["true"], capture_output=True, text=True), Result[str])
    assert_type(dockless.run("host", ["true"], capture_output=True), Result[bytes])
    assert_type(dockless.run(["cat"], input=b"x", capture_output=True, memory="1G").stdout, bytes)
    assert_type(dockless.run(["cat"], input="x", capture_output=True, text=True).stdout, str)
    assert_type(dockless.run(["true"]), Result[Any])


def boxes() -> None:
    with Sandbox("host", ["cat"], stdin=PIPE, stdout=PIPE, text=True) as box:
        assert_type(box, Sandbox[str])
        assert_type(box.communicate("x"), tuple[str | Any, str | Any])
        assert_type(box.stdin, IO[str] | Any)
        for line in box.stdout:
            assert_type(line, str | Any)
    with Sandbox("host", ["sleep", "9"]) as plain:
        assert_type(plain, Sandbox[bytes])
        assert_type(plain.exec("true"), Result[bytes])
        assert_type(plain.exec("cat", input="x", text=True, max_output="1K"), Result[str])
        assert_type(plain.shell("ls | wc -l", text=True, check=True).stdout, str)
        assert_type(plain.files.read_text("/etc/os-release"), str)
        with plain.spawn("cat", stdin=PIPE, stdout=PIPE, text=True) as command:
            assert_type(command, Execution[str])
            assert_type(command.stdin, IO[str] | Any)
    assert_type(dockless.start(["sleep", "9"]), Sandbox[bytes])
    assert_type(Sandbox.open("web").state, dockless.State)
    assert_type(dockless.aio.Submitted(1), aio.Submitted)


def volumes() -> None:
    made = dockless.volumes.create("data", labels={"team": "a"})
    assert_type(made, dockless.VolumeInfo)
    assert_type(dockless.volumes.list(labels={"team": None}, dangling=True), Sequence[dockless.VolumeInfo])
    assert_type(dockless.volumes.prune(), Sequence[str])
    dockless.volumes.remove(made.name)


def mistakes() -> None:
    """Each line is a mistake; a type checker that takes it reports the comment as unused."""
    dockless.rnu(["true"])  # type: ignore[attr-defined]
    dockless.run(["true"], memroy="1G")  # type: ignore[call-overload]
    dockless.run(["true"], profile="trusted")  # type: ignore[call-overload]
    Sandbox(["cat"], stdin=PIPE, text=True).stdin.write(b"x")  # type: ignore[arg-type]


async def awaited() -> None:
    assert_type(await aio.run("host", ["true"], capture_output=True, text=True), Result[str])
    assert_type(await aio.run("host", ["true"], capture_output=True), Result[bytes])
    assert_type(await aio.run(["true"], stdout=DEVNULL), Result[Any])
    async with aio.Sandbox(["cat"], stdin=PIPE, stdout=PIPE, text=True) as box:
        assert_type(box, aio.Sandbox[str])
        await box.stdin.write("x")
        async for line in box.stdout:
            assert_type(line, str | Any)
        assert_type(await box.exec("true", text=True), Result[str])
        assert_type(await box.exec("true"), Result[bytes])
        async with box.spawn("cat", stdout=PIPE, text=True) as command:
            assert_type(command, aio.Execution[str])
        assert_type(await box.spawn("cat"), aio.Execution[bytes])
        await box.stop(1)
    assert_type(await aio.start(["sleep", "9"]), aio.Sandbox[bytes])
    async with aio.start(["cat"], interactive=True) as cat, aio.Sandbox.open(cat.id) as found, cat.attach() as attached:
        assert_type(cat, aio.Sandbox[bytes])
        assert_type(found, aio.Sandbox[bytes])
        assert_type(attached, aio.Attachment)
        assert_type(await found.attach(), aio.Attachment)
        async with found.open_stdin() as stdin:
            await stdin.write(b"x")
    assert_type(await aio.volumes.get("data"), dockless.VolumeInfo)
    assert_type(await aio.volumes.list(names="data"), Sequence[dockless.VolumeInfo])
    job = await aio.submit("host", ["true"], gpus=1)
    assert_type(job, aio.Submitted)
    assert_type(await job, dockless.Job)
    assert_type(await aio.submit(["true"], array="0-9%2"), list[aio.Submitted])
    assert_type(await aio.submit_file("job.toml", name="x"), list[aio.Submitted])


def kept(options: dockless.Options) -> None:
    assert_type(dockless.run(["true"], capture_output=True, text=True, **options), Result[str])
    assert_type(Sandbox(["true"], stdout=PIPE, text=True, **options), Sandbox[str])
