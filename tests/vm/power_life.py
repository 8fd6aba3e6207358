"""In the guest whose power is cut: a daemon with root's queue, and jobs that are submitted, run, end and are cancelled, until the cut.

Each answer of the daemon is said on the second serial port, and so is each run of a job's program, by itself. ``last``: nothing is
submitted any more; what is there comes to its end, and the daemon's word on each job is said.

    ack ID CODE on_reboot    cancel ID    ran ID ATTEMPT    end ID STATE CODE ATTEMPTS REASON
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.scheduling import DaemonProcess

from dockless.errors import DocklessError
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import Client, Job, JobSpec

HOME, MARKS = Path("/scratch/h"), Path("/run/marks")
BUSY = 8
saying = threading.Lock()


def say(*words: object) -> None:
    with saying:
        os.write(port, " ".join(map(str, words)).encode() + b"\n")


def shell(code: int, sleep: float, **more: object) -> JobSpec:
    script = f"echo ran $DOCKLESS_JOB_ID $DOCKLESS_ATTEMPT > /marks/pipe; sleep {sleep}; exit {code}"
    return JobSpec(Spec(argv=("sh", "-c", script), mounts=(Bind(str(MARKS), "/marks"),)), **more)


def pass_on(pipe: int) -> None:
    """What the jobs say."""
    text = b""
    while True:
        *lines, text = (text + os.read(pipe, 4096)).split(b"\n")
        for line in lines:
            say(line.decode())


def told(job: Job) -> None:
    say("end", job.id, job.state, -1 if job.exit_code is None else job.exit_code, job.attempt, job.reason.replace("\n", " "))


def work(queue: Client) -> None:
    """Until the power goes."""
    number, ended = 0, set[int]()
    while True:
        while len(queue.queue()) >= BUSY:
            time.sleep(0.05)
        for _ in range(3):
            number += 1
            code, policy = number % 100 + 1, "requeue" if number % 2 else "fail"
            jobs = [shell(code, number % 4 / 2, on_reboot=policy, gpus="1" if number % 3 == 0 else "")] * (3 if number % 5 == 0 else 1)
            submitted = queue.submit_many(jobs)
            for one in submitted:
                say("ack", one, code, policy)
            if number % 7 == 0:
                say("cancel", submitted[0])  # one that is under way at the cut may have been done
                queue.cancel(submitted[0], grace=0)
        for job in queue.queue(ended=True, limit=50):
            if job.state.ended and job.id not in ended:
                ended.add(job.id)
                told(job)


def main() -> None:
    HOME.mkdir(exist_ok=True)
    MARKS.mkdir()
    MARKS.chmod(0o755)
    os.mkfifo(MARKS / "pipe")
    (MARKS / "pipe").chmod(0o666)
    threading.Thread(target=pass_on, args=(os.open(MARKS / "pipe", os.O_RDWR),), daemon=True).start()
    daemon = DaemonProcess(HOME, gpus="2x80G", settings="[host]\ncpu_jobs = 4\n").start()
    say("up")
    with daemon.client() as queue:
        if "last" not in sys.argv[1:]:
            work(queue)
        queue.wait_many([job.id for job in queue.queue()], timeout=300)
        for job in queue.queue(ended=True):
            told(job)
    daemon.stop()
    left = [path.name for path in (HOME / "state" / "sandboxes").iterdir()]
    say("over", *left)


if __name__ == "__main__":
    port = os.open("/dev/ttyS1", os.O_WRONLY | os.O_NOCTTY)
    os.system("stty -F /dev/ttyS1 raw -echo")
    try:
        main()
    except (DocklessError, AssertionError) as error:
        say("wrong", repr(error))
        raise
