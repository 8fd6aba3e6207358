"""What the driver reports of GPUs, as jobs have it: in their attempts and in ``why``, counted in ``top`` and ``metrics``."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest
from support.desk import ANN, BEN, play
from support.stand_in import until

from dockless.errors import NotPermitted
from dockless.sandbox.gpus.watch import Report
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec
from dockless.sched.engine.gpus import figures
from dockless.sched.engine.gpus.gpu_errors import MOST, reported
from dockless.sched.store import queue as queue_store
from dockless.sched.wire import metrics, picture

FAULT = "Xid 31, an access of a program to memory that it does not have"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "3x80G,mig=2")
    monkeypatch.setattr(figures, "FRESH", 0.0)
    monkeypatch.setattr(picture, "FRESH", 0.0)


def job(gpus: str) -> JobSpec:
    return JobSpec(Spec(argv=("true",)), gpus=gpus)


async def errors_of(desk, number: int) -> list[tuple[str, ...]]:
    await asyncio.sleep(0)
    await desk.engine.write(lambda db: None)  # what was to be written before is
    return [one.gpu_errors for one in (await desk(ANN, lambda queue: queue.job(number))).attempts]


def test_a_job_is_told_what_its_gpu_has_met(tmp_path):
    """Whoever has the GPU is, and its owner alone can read it. Where the GPU is not fit for use it goes out of service besides."""

    async def story(desk):
        engine = desk.engine
        first, other = await desk.submit(ANN, job("device=0"), job("device=1"))
        box = await desk.runs(first)
        await desk.runs(other)
        whole = engine.gpus.uuids[0]
        for uuid in (whole, "GPU-of-another-host"):
            reported(engine, Report(uuid, FAULT, 31, unfit=False))
        assert await errors_of(desk, first) == [(f"GPU 0: {FAULT}",)] and await errors_of(desk, other) == [()]
        assert (await desk(ANN, lambda queue: queue.why(first))).reason == f"GPU 0: {FAULT}"
        await desk.refused(NotPermitted, BEN, lambda queue: queue.job(first))
        assert whole not in engine.gpus.out_of_service
        reported(engine, Report(whole, "Xid 79, gone", 79))
        assert whole in engine.gpus.out_of_service
        reported(engine, Report("", "it does not answer"))
        box.end(Exit(1, None))
        await desk(ANN, lambda queue: queue.wait(first))
        reported(engine, Report(whole, "Xid 45, after its end", 45, unfit=False))
        assert await errors_of(desk, first) == [(f"GPU 0: {FAULT}", "GPU 0: Xid 79, gone")]
        assert (await desk(ANN, lambda queue: queue.why(first))).reason == f"exit code 1; GPU 0: {FAULT}; GPU 0: Xid 79, gone"

    play(tmp_path, story)


def test_of_a_flood_a_few_are_written_down(tmp_path):
    """All are counted, by GPU and number."""

    async def story(desk):
        (first,) = await desk.submit(ANN, job("device=0"))
        await desk.runs(first)
        whole = desk.engine.gpus.uuids[0]
        for number in range(3000):
            xid = 1 + number % 30
            reported(desk.engine, Report(whole, f"Xid {xid}", xid, unfit=False))
        expected = tuple(f"GPU 0: Xid {xid}" for xid in range(1, 1 + MOST))
        assert await errors_of(desk, first) == [expected] and len(desk.engine.entries[first].gpu_errors) == MOST
        desk.engine.entries[first].gpu_errors = ()  # as after a restart of the daemon
        reported(desk.engine, Report(whole, "Xid 1", 1, unfit=False))
        reported(desk.engine, Report(whole, "Xid 99", 99, unfit=False))
        assert await errors_of(desk, first) == [expected]
        top = await desk(BEN, lambda queue: queue.top())
        assert top.gpus[0].xids == ((1, 101), *((xid, 100) for xid in range(2, 31)), (99, 1))

    play(tmp_path, story)


def test_slices(tmp_path):
    """An error of one of them is not its neighbour's; one of no slice is all of theirs."""

    async def story(desk):
        engine = desk.engine
        one, two = (unit for unit in engine.gpus.gpus if unit.parent)
        first, second = await desk.submit(ANN, job(one.uuid), job(two.uuid))
        await desk.runs(first)
        await desk.runs(second)
        reported(engine, Report(one.parent, "Xid 43", 43, unfit=False, gi=one.mig[0].gi))
        reported(engine, Report(one.parent, "Xid 63", 63, unfit=False))
        assert await errors_of(desk, first) == [("GPU 2: Xid 43", "GPU 2: Xid 63")]
        assert await errors_of(desk, second) == [("GPU 2: Xid 63",)]
        assert engine.xids == {(one.uuid, 43): 1, (one.uuid, 63): 1, (two.uuid, 63): 1}

    play(tmp_path, story)


def test_what_cannot_be_written_down(tmp_path, monkeypatch, capfd):
    """The job goes on, and the log says so."""

    def full(db, **what):
        db.execute("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(queue_store, "note_gpu_error", full)

    async def story(desk):
        (first,) = await desk.submit(ANN, job("device=0"))
        await desk.runs(first)
        reported(desk.engine, Report(desk.engine.gpus.uuids[0], FAULT, 31, unfit=False))
        await until(lambda: f"what GPUs have reported of job {first} is not written down" in capfd.readouterr().err)
        assert await errors_of(desk, first) == [()]

    play(tmp_path, story)


def test_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "3x80G,mig=2,ecc=1")

    async def story(desk):
        engine = desk.engine
        reported(engine, Report(engine.gpus.uuids[0], FAULT, 31, unfit=False))
        host, top = await desk(ANN, lambda queue: (queue.info(), queue.top()))
        counts = [(row["ecc_corrected"], row["ecc_uncorrected"], row["xids"]) for row in top.as_dict()["gpus"]]
        assert counts[:2] == [(0, 0, [[31, 1]]), (0, 2, [])]
        lines = metrics.text(host, top).splitlines()
        (xid,) = [line for line in lines if line.startswith("dockless_gpu_xid_errors_total")]
        assert 'gpu="0"' in xid and 'simulated="true"' in xid and xid.endswith(',xid="31"} 1')
        assert "# TYPE dockless_gpu_xid_errors_total counter" in lines and "# TYPE dockless_gpu_ecc_uncorrected gauge" in lines
        last = [line.rpartition(" ")[2] for line in lines if line.startswith("dockless_gpu_ecc_uncorrected{")]
        assert last == ["0", "2", "0", "0"]

    play(tmp_path, story)
