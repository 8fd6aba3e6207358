"""``box.files`` of ``dockless.aio``, under asyncio and, where it is installed, trio."""

from __future__ import annotations

import asyncio
import io
import os

import pytest
from support.requires import requires

from dockless import aio

pytestmark = requires("userns")
TMP = {"tmpfs": ["/tmp"]}


def by_trio(main):
    return pytest.importorskip("trio").run(main)


def by_asyncio(main):
    return asyncio.run(main())


@pytest.fixture(params=[by_asyncio, by_trio])
def loop(request):
    return request.param


def test_files_are_awaited(loop, tmp_path):
    (tmp_path / "f").write_text("in")

    async def main():
        async with aio.Sandbox(["sleep", "100"], **TMP) as box:
            assert await box.files.write_text("/tmp/x", "text") == 4
            assert await box.files.read_text("/tmp/x") == "text" and await box.files.exists("/tmp/x")
            await box.files.mkdir("/tmp/d/e", parents=True)
            await box.files.rename("/tmp/x", "/tmp/d/y")
            told = []
            assert (await box.files.copy_in(tmp_path / "f", "/tmp/d", progress=lambda *so_far: told.append(so_far))).files == 1 and told
            assert [info.name for info in await box.files.list("/tmp/d")] == ["e", "f", "y"]
            assert (await box.files.copy_out("/tmp/d", tmp_path / "out")).files == 2
            await box.files.remove("/tmp/d", recursive=True)
            with pytest.raises(FileNotFoundError):
                await box.files.stat("/tmp/d")
            assert "Uid:\t65534" in await box.files.as_user("65534:65534").read_text("/proc/self/status")
            await box.files.close()

    loop(main)
    assert (tmp_path / "out" / "f").read_text() == "in" and (tmp_path / "out" / "y").read_text() == "text"


def test_a_watch_is_awaited(loop):
    async def main():
        async with aio.Sandbox(["sleep", "100"], **TMP) as box, box.files.watch("/tmp") as watch:
            await box.files.write_text("/tmp/x", "")
            async for event in watch:
                assert (event.path, event.kind) == ("/tmp/x", "created")
                break

    loop(main)


def test_a_watch_of_what_is_below_is_awaited(loop):
    async def main():
        async with aio.Sandbox(["sleep", "100"], **TMP) as box:
            await box.files.mkdir("/tmp/d")
            async with box.files.watch("/tmp", recursive=True) as watch:
                await box.files.write_text("/tmp/d/x", "")
                async for event in watch:
                    assert (event.path, event.kind) == ("/tmp/d/x", "created")
                    break

    loop(main)


def test_who_is_cancelled_while_a_watch_begins_leaves_no_descriptor_open():
    async def main():
        async with aio.Sandbox(["sleep", "100"], **TMP) as box:
            async with box.files.watch("/tmp"):
                pass
            before = len(os.listdir("/proc/self/fd"))
            watch = box.files.watch("/tmp")
            beginning = asyncio.create_task(watch.__aenter__())
            await asyncio.sleep(0)
            beginning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await beginning
            assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())


def test_copies_have_bounds_and_tell_how_far_they_are(loop, tmp_path):
    async def main():
        async with aio.Sandbox(["sleep", "100"], **TMP) as box:
            await box.files.mkdir("/tmp/d")
            for name in "ab":
                await box.files.write_text(f"/tmp/d/{name}", "two")
            archive = io.BytesIO()
            await box.files.tar_out("/tmp/d", archive)
            copies = {
                "copy_out": lambda **how: box.files.copy_out("/tmp/d", tmp_path / "out", **how),
                "tar_out": lambda **how: box.files.tar_out("/tmp/d", io.BytesIO(), **how),
                "tar_in": lambda **how: box.files.tar_in(io.BytesIO(archive.getvalue()), "/tmp", **how),
            }
            for name, copy in copies.items():
                for bound in ("max_size", "max_files"):
                    with pytest.raises(OSError, match="More than"):
                        await copy(**{bound: 1})
                        raise AssertionError((name, bound))
                told = []
                await copy(progress=lambda *so_far, told=told: told.append(so_far))
                assert told, name

    loop(main)


def test_many_at_once_do_not_mix(loop, tmp_path):
    async def main():
        async with aio.Sandbox(["sleep", "100"], **TMP) as box:

            async def one(number):
                await box.files.write_text(f"/tmp/{number}", str(number) * 50_000)
                assert await box.files.read_text(f"/tmp/{number}") == str(number) * 50_000

            if loop is by_asyncio:
                await asyncio.gather(*(one(number) for number in range(20)))
            else:
                import trio

                async with trio.open_nursery() as nursery:
                    for number in range(20):
                        nursery.start_soon(one, number)

    loop(main)


def test_a_copy_that_is_cancelled_stops(tmp_path):
    with open(tmp_path / "large", "wb") as stream:
        stream.truncate(1 << 40)  # hours

    async def main():
        async with aio.Sandbox(["sleep", "100"], **TMP) as box:
            begun = asyncio.Event()
            loop = asyncio.get_running_loop()

            def progress(files, size):
                if size:
                    loop.call_soon_threadsafe(begun.set)

            copying = asyncio.ensure_future(box.files.copy_in(tmp_path / "large", "/tmp/x", progress=progress))
            await begun.wait()
            copying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await copying
            assert await box.files.exists("/tmp/x")

    asyncio.run(main())
