"""What owners are told of their jobs: which events, by which way, to whom, and what is never in it."""

from __future__ import annotations

import asyncio
import email
import http.server
import json
import socket
import threading
import time
from email import policy as email_policy
from pathlib import Path
from typing import ClassVar

import pytest
from support.desk import ANN, play
from support.stand_in import until

from dockless._submitting import make_job
from dockless.errors import BadInput, Refused
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import Job, JobSpec, State
from dockless.sched.config import Config, Ways, load
from dockless.sched.engine import notices
from dockless.sched.engine.lifecycle import ending
from dockless.sched.engine.notices import Notice, Notices
from dockless.sched.jobs import JobOptions
from dockless.sched.parsing import parse_events
from dockless.sched.store import queue

SECRETS = ("--token=hunter2", "PASSWORD", "hunter3", "hunter4")


def job(**fields) -> Job:
    return Job(**({"id": 7, "uid": 1001, "user": "ann", "state": State.FAILED, "name": "night", "submitted": 1.0} | fields))


@pytest.fixture
def post(tmp_path) -> Path:
    """A mail program: what it was called with and was given, one after the other."""
    box = tmp_path / "post"
    box.mkdir()
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\nfile=$(mktemp {box}/XXXXXX)\n(echo "$@"; env; echo; cat) > "$file"; mv "$file" "$file.done"\n')
    program.chmod(0o755)
    return program


def letters(post: Path) -> list[str]:
    return [one.read_text() for one in sorted((post.parent / "post").glob("*.done"), key=lambda one: one.stat().st_mtime_ns)]


def test_the_events_of_a_job(tmp_path, post, monkeypatch):
    """By mail to its owner; of those that were asked for, each once; and nothing of its command, its environment or its reason."""
    config = Config(notify=Ways(sendmail=str(post), domains=("lab.example", "other.example")))
    monkeypatch.setenv(SECRETS[1], SECRETS[2])

    def wanted(*events, **fields):
        spec = Spec(argv=("train", SECRETS[0]), env=((SECRETS[1], SECRETS[3]),))
        return JobSpec(spec, name="night", notify=events, **fields)

    async def story(desk):
        numbers = await desk.submit(
            ANN, wanted("start", "end"), wanted("end", "fail", notify_to="eve@OTHER.example"), wanted("fail"), wanted("start"), wanted()
        )
        for number, code in zip(numbers, (0, 3, 0, 0, 1), strict=True):
            (await desk.runs(number)).end(Exit(code, None, started=time.time(), ended=time.time()))
        await desk(ANN, lambda client: client.wait_many(numbers))
        await until(lambda: len(letters(post)) == 4)
        await desk.refused(BadInput, ANN, lambda client: client.submit(wanted("end", notify_to="eve@evil.example")))
        assert desk.engine.entries == {}
        return numbers

    first, second, _, fourth, _ = play(tmp_path, story, config)
    subjects, told = [], letters(post)
    for text in told:
        head, _, rest = text.partition("\n\n")
        called, *environment = head.splitlines()
        message = email.message_from_string(rest, policy=email_policy.default)
        assert called == f"-i -- {message['To']}" and {line.partition("=")[0] for line in environment} <= {
            "PATH",
            "LC_ALL",
            "PWD",
            "_",
            "SHLVL",
            "OLDPWD",
        }
        subjects.append((message["To"], message["Subject"]))
        assert not any(secret in text for secret in SECRETS) and "exit code 3" not in text
    host = "ann@lab.example"
    assert sorted(subjects) == sorted(
        [
            (host, f"Job {first} (night) started"), (host, f"Job {first} (night) ended"),
            ("eve@OTHER.example", f"Job {second} (night) failed"), (host, f"Job {fourth} (night) started"),
        ]
    )  # fmt: skip
    assert any("Exit code:  3" in text and "State:      FAILED" in text for text in told)


def test_where_nothing_is_sent(tmp_path):
    """Who asks for it is told; nothing else is refused."""

    async def story(desk):
        said = await desk.refused(Refused, ANN, lambda client: client.submit(JobSpec(Spec(argv=("true",)), notify=("end",))))
        assert said == "this host sends no notices"
        (number,) = await desk.submit(ANN, JobSpec(Spec(argv=("true",))))
        assert desk.engine.entries[number].job.options == JobOptions()

    play(tmp_path, story)


def test_one_that_waits_again(tmp_path, post):
    async def story(desk):
        (number,) = await desk.submit(ANN, JobSpec(Spec(argv=("true",)), notify=("preempt",)))
        await desk.runs(number)
        entry = desk.engine.entries[number]
        await until(lambda: entry.pidfd >= 0)
        ending.unwatch(desk.engine, entry)
        await desk.engine.back(entry, lambda db: queue.requeue(db, number, 9.0, "why"))
        await until(lambda: len(letters(post)) == 1)
        assert f"Subject: Job {number} was ended and waits again\n" in letters(post)[0]

    play(tmp_path, story, Config(notify=Ways(sendmail=str(post))))


@pytest.mark.parametrize(
    "text",
    ["-oQ/tmp", "a b", "a@b c", "a\nBcc: x@lab.example", "a@lab.example\n", "|sh", "a@@lab.example", "a..b@lab.example", "", "@lab.example",
     "a", "a,b@lab.example", "a@lab.example.evil", "ä@lab.example", "a" * 65 + "@lab.example"],
)  # fmt: skip
def test_what_is_no_address(text):
    with pytest.raises(BadInput):
        notices.check_address(text, ("lab.example",))


def test_an_owner_whose_name_is_no_address():
    assert notices.address(Notice("end", job(user="-oQ/tmp")), Ways()) == ""
    assert notices.address(Notice("end", job()), Ways()) == "ann"


@pytest.mark.parametrize("name", ["x\nBcc: eve@evil.example", "x\r\n\r\nbody", "x\u2028y", "night 夜"])
def test_no_header_is_made_of_a_name(name):
    """Whatever a record holds."""
    message = notices.letter(Notice("end", job(name=name)), "ann", Ways())
    again = email.message_from_bytes(bytes(message), policy=email_policy.default)
    assert [*again] == [
        "From",
        "To",
        "Subject",
        "Date",
        "Auto-Submitted",
        "Content-Type",
        "Content-Transfer-Encoding",
        "MIME-Version",
    ] or set(again) == set(message)
    assert again["Bcc"] is None and again["To"] == "ann"
    assert ("夜" in again["Subject"]) == ("夜" in name)


class Web(http.server.BaseHTTPRequestHandler):
    asked: ClassVar[list[tuple[str, dict]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, json.loads(body)))
        self.send_response(302 if self.path == "/away" else 204)
        self.send_header("Location", "/stolen")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def web():
    Web.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_by_the_web(web, monkeypatch):
    """To the address of the settings and nowhere else: no proxy, no redirection."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    notices.send(Ways(webhook=f"{web}/hook"), Notice("fail", job(reason=SECRETS[2], command=SECRETS[0], exit_code=3)))
    ((path, told),) = Web.asked
    assert path == "/hook" and told == {
        "event": "fail", "host": socket.gethostname(), "job": 7, "name": "night", "user": "ann", "state": "FAILED", "gpus": 0, "attempt": 0,
        "submitted": 1.0, "started": 0.0, "ended": 0.0, "exit_code": 3,
    }  # fmt: skip
    with pytest.raises(OSError, match="302"):
        notices.send(Ways(webhook=f"{web}/away"), Notice("fail", job()))
    assert [path for path, _ in Web.asked] == ["/hook", "/away"]


def test_by_a_mail_server_and_each_way_is_tried(post, web):
    """RFC 5321; one way that fails keeps no other from being tried."""
    said: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rwb", 0) as lines:
                lines.write(b"220 here\r\n")
                data = False
                for line in lines:
                    said.append(line)
                    if not data or line == b".\r\n":
                        data = line == b"data\r\n"
                        lines.write(b"354 go on\r\n" if data else b"250 good\r\n")
                    if line == b"quit\r\n":
                        return

        thread = threading.Thread(target=answer)
        thread.start()
        where = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(OSError):
            notices.send(Ways(smtp=where, sender="host@lab.example", webhook=f"{web}/away"), Notice("end", job()))
        thread.join()
    text = b"".join(said)
    assert b"mail FROM:<host@lab.example>" in text and b"rcpt TO:<ann>\r\n" in text and b"Subject: Job 7 (night) ended\r\n" in text


def test_it_is_bounded_and_tried_again(monkeypatch, capfd):
    """Nobody's many jobs fill a mailbox or the daemon; what fails is tried twice more and then told, without what it was."""
    monkeypatch.setattr(notices, "AN_HOUR", 3)
    monkeypatch.setattr(notices, "MOST", 5)
    monkeypatch.setattr(notices, "AGAIN", (0.001, 0.001))
    tried: list[str] = []
    gate = threading.Event()

    def send(ways, notice):
        gate.wait(20)
        tried.append(notice.job.user)
        raise OSError(SECRETS[2])

    monkeypatch.setattr(notices, "send", send)

    async def story():
        desk = Notices()
        desk.tell(Notice("end", job()))  # nobody has said how
        desk.ways = Ways(sendmail="/x")
        began = time.monotonic()
        for user in ("ann",) * 9 + ("ben", "eve", "zoe"):
            desk.tell(Notice("end", job(user=user)))
        assert time.monotonic() - began < 10 and desk._waiting == 5 and desk._lost == 7
        gate.set()
        await until(lambda: desk._waiting == 0)
        assert sorted(tried) == ["ann"] * 9 + ["ben"] * 3 + ["eve"] * 3
        desk._hour = -1
        desk.tell(Notice("end", job(user="zoe")))
        await until(lambda: desk._waiting == 0)
        desk.close()

    asyncio.run(story())
    err = capfd.readouterr().err
    assert err.count("its notice cannot be sent: OSError") == 6 and "7 notices were too many" in err and SECRETS[2] not in err


def test_what_is_asked_for():
    assert parse_events("end, start,end") == ("start", "end") and parse_events("all") == ("start", "end", "fail", "preempt", "idle")
    assert make_job("host", ["true"], {}, notify="fail,end", notify_to="a@b.example").notify == ("end", "fail")
    assert make_job("host", ["true"], {}, notify=["fail"]).notify == ("fail",) and make_job("host", ["true"], {}).notify == ()
    for wrong in ("moon", "end;start", "start,,end"):
        with pytest.raises(BadInput, match="no event"):
            parse_events(wrong)
    for wrong in (("all",), ("end", "end"), ("moon",)):
        with pytest.raises(BadInput, match="no event"):
            JobSpec(notify=wrong)
    with pytest.raises(BadInput, match="notify_to"):
        JobSpec(notify_to="a@b\n")


@pytest.mark.parametrize(
    ("line", "named"),
    [('webhook = "file:///etc/shadow"', "webhook"), ('smtp = "-x"', "smtp"), ('smtp = "host:port"', "smtp"), ('sender = "a b"', "sender"),
     ('domains = ["a b"]', "domains"), ('sendmail = "mail"', "sendmail"), ('webhook = "https://x\\n"', "webhook")],
)  # fmt: skip
def test_settings_that_are_none(tmp_path, line, named):
    path = tmp_path / "dockless.toml"
    path.write_text(f"[notify]\n{line}\n")
    with pytest.raises(BadInput, match=f"notify.{named} is "):
        load(path)


def test_settings(tmp_path):
    path = tmp_path / "dockless.toml"
    path.write_text(
        '[notify]\nsendmail = "/usr/sbin/sendmail"\nsmtp = "mail:587"\nsender = "q@lab.example"\ndomains = ["lab.example"]\n'
        'webhook = "https://chat/x?y=z"\n'
    )
    assert load(path).notify == Ways("/usr/sbin/sendmail", "mail:587", "q@lab.example", ("lab.example",), "https://chat/x?y=z")
    assert not Config().notify.any
