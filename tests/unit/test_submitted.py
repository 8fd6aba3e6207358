"""``submit`` and its handle, and the image that a job needs: what each asks of whom."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dockless import _pulling as pulling
from dockless import _submitting as submitting
from dockless import aio, sched, submit, submit_file
from dockless._submitting import Submitted, make_job
from dockless.errors import BadInput, NotFound, UnknownImage
from dockless.images import Store
from dockless.sched import DaemonInfo

DAEMON = DaemonInfo(pid=1, version="", owner_uid=pulling.os.geteuid(), user="me", admin=False, started=0.0, socket="/s")
OTHERS = replace(DAEMON, owner_uid=DAEMON.owner_uid + 1)


@pytest.fixture
def asked(monkeypatch):
    """What the daemon was asked, in order; each answer is the question again."""
    asked = []

    class Client:
        def ping(self):
            return DAEMON

        def submit_many(self, jobs, progress=None):
            asked.extend(jobs)
            return [7 + at for at in range(len(jobs))]

        def submit_array(self, job, count):
            asked.append((job.array_limit, job.spec.argv))
            return [*range(7, 7 + count)]

        def submit_gang(self, jobs):
            asked.append([job.role for job in jobs])
            return [7 + at for at in range(len(jobs))]

        def hold(self, number):
            return [number]

        release = hold

        def requeue(self, number, grace):
            return [(number, grace)]

        def __getattr__(self, verb):
            def ask(*words, **how):
                asked.append((verb, words, how))
                return [asked[-1]] if verb == "logs" else asked[-1]

            return ask

    monkeypatch.setattr(sched, "connect", lambda: contextlib.nullcontext(Client()))
    return asked


def test_a_handle(asked):
    job = Submitted(7)
    assert int(job) == 7
    assert job.status() == ("job", (7,), {})
    assert (job.wait(), job.wait(5.0)) == (("wait", (7,), {"timeout": None}), ("wait", (7,), {"timeout": 5.0}))
    assert (job.cancel(), job.cancel(grace=5.0)) == (("cancel", (7,), {"grace": None}), ("cancel", (7,), {"grace": 5.0}))
    assert (job.hold(), job.release(), job.requeue(), job.requeue(grace=5.0)) == (7, 7, (7, None), (7, 5.0))
    assert [*job.logs(), *job.logs(follow=True)] == [("logs", (7,), {"follow": False}), ("logs", (7,), {"follow": True})]


def test_an_awaited_handle(asked):
    job = aio.Submitted(7)
    assert job == aio.Submitted(7) != aio.Submitted(8) and len({job, aio.Submitted(7)}) == 1
    assert asyncio.run(job.cancel(grace=5.0)) == ("cancel", (7,), {"grace": 5.0})
    assert asyncio.run(job.requeue(grace=5.0)) == (7, 5.0)
    assert asyncio.run(job.hold()) == asyncio.run(job.release()) == 7


def test_submit(asked, monkeypatch):
    """With the name that its image has once it is there; the default is to bring what is missing."""
    brought = []

    def present_for(daemon, image, policy, platform):
        brought.append((daemon, image, policy))
        return f"there-{image}"

    monkeypatch.setattr(submitting, "present_for", present_for)
    how = {
        "priority": -7, "time_limit": "1m", "name": "night", "group": "lab", "on_reboot": "requeue", "hold": True,
        "begin": "2030-01-31 08:00", "after": "ok:12,afterany:13", "singleton": True, "retries": 3, "retry_on": [75, 1],
    }  # fmt: skip
    assert submit("img", ["a"], gpus=2, env={"A": "1"}, **how) == Submitted(7)
    assert asked == [make_job("there-img", ["a"], {"gpus": 2, "env": {"A": "1"}}, **how)]
    assert (asked[0].hold, asked[0].begin, asked[0].after, asked[0].singleton) == (True, 1_896_076_800.0, ("ok:12", "any:13"), True)
    assert (asked[0].retries, asked[0].retry_on) == (3, (75, 1))
    assert make_job("img", ["a"], {}, after=["ok:12", "any:13"]).after == ("ok:12", "any:13")
    submit(["a"], pull="always")
    assert asked[1:] == [make_job("there-host", ["a"], {"pull": "always"})]
    assert brought == [(DAEMON, "img", "missing"), (DAEMON, "host", "always")]


def test_an_unknown_image_is_told_with_whose_store_lacks_it(asked, monkeypatch):
    told = []

    @contextlib.contextmanager
    def told_whose_store(daemon, image):
        told.append((daemon, image))
        yield

    monkeypatch.setattr(submitting, "told_whose_store", told_whose_store)
    monkeypatch.setattr(submitting, "present_for", lambda daemon, image, policy, platform: "there:1")
    submit("img")
    assert told == [(DAEMON, "there:1")]


def test_arrays_and_job_files_from_python(asked, tmp_path, monkeypatch):
    """Each gives the handles of all jobs, and whoever awaits it has the same."""
    assert submit(["a"], array="0-2%2") == [Submitted(7), Submitted(8), Submitted(9)]
    assert asked.pop() == (2, ("a",))
    path = tmp_path / "job.toml"
    path.write_text("name = 'n'\narray = 3\ncommand = ['a']\n")
    assert submit_file(path) == [Submitted(7), Submitted(8), Submitted(9)] and asked.pop() == (0, ("a",))
    assert len(submit_file(path, array="0-1%1", name="m")) == 2 and asked.pop() == (1, ("a",))
    path.write_text("array = '2%1'\n[roles.a]\ncommand = ['a']\n")  # each of them alone
    assert submit_file(path) == [Submitted(7), Submitted(8)] and asked.pop() == (1, ("a",))
    path.write_text("name = 'n'\ncommand = ['a']\n")
    assert submit_file(str(path), name="other", time_limit="1m", retries=2) == [Submitted(7)]
    assert asked.pop() == make_job("host", ["a"], {}, name="other", time_limit=60, retries=2)
    monkeypatch.chdir(tmp_path)
    path.with_name("-").write_text("command = ['dash']\n")  # from Python it is a file like any other
    assert submit_file("-") == [Submitted(7)] and asked.pop().spec.argv == ("dash",)
    assert submit_file(text="[roles.a]\ncount = 2\nscript = 'true'\n[roles.master]\nscript = 'true'\n") == [Submitted(n) for n in (7, 8, 9)]
    assert asked.pop() == ["master", "a", "a"]
    assert asyncio.run(aio.submit_file(path)) == [aio.Submitted(7)]
    assert asyncio.run(aio.submit(["a"], array=2)) == [aio.Submitted(7), aio.Submitted(8)]
    assert asyncio.run(aio.submit(["a"])) == aio.Submitted(7)


def test_keywords_of_submit_are_those_of_the_queue_too(asked):
    with pytest.raises(TypeError, match=r"unknown keyword 'time_limt': did you mean time_limit\?"):
        submit(["a"], time_limt="1h")
    with pytest.raises(TypeError, match=r"unknown keyword 'zzz'; known are .*memory.*time_limit"):
        submit(["a"], zzz=1)


def test_arguments_and_texts_of_a_job_file_are_checked(asked, tmp_path):
    with pytest.raises(BadInput, match="arguments is one text, 'abc', not a list"):
        submit_file(text="#!/bin/sh\ntrue\n", format="sbatch", arguments="abc")
    with pytest.raises(BadInput, match=r"text is b'#!/bin/sh', not a text"):
        submit_file(text=b"#!/bin/sh")
    with pytest.raises(BadInput) as caught:
        submit_file(text="[roles.a]\nscript = 'x'\n[roles.b]\nscript = 'x'", priority="x")
    assert not getattr(caught.value, "__notes__", ())


def test_a_note_of_a_job_file_names_the_line_that_submits_it(asked):
    async def awaited():
        await aio.submit_file(text="script = 'x'\n[roles.a]\nscript = 'y'\n")

    with pytest.warns(UserWarning, match="script: has no effect") as caught:
        asyncio.run(awaited())
    assert {one.filename for one in caught} == {__file__}


def test_what_a_job_file_from_python_is_refused_for(asked, tmp_path):
    with pytest.raises(BadInput, match="a path or a text"):
        submit_file()
    with pytest.raises(TypeError, match="unknown keyword 'gpus'"):
        submit_file(text="command = ['a']", gpus=1)
    with pytest.raises(BadInput, match="array stands beside several roles"):
        submit_file(text="count = 2\ncommand = ['a']", array=3)
    with pytest.raises(BadInput, match="text:1: memroy is unknown") as caught:
        submit_file(text="memroy = 1\ngpsu = 2\n")
    assert caught.value.__notes__ == ["text:2: gpsu is unknown (did you mean gpus?)"]
    with pytest.warns(UserWarning) as told:
        submit_file(text="#!/bin/sh\n#SBATCH --mail-type=END\n#SBATCH --partition=x\n", format="sbatch", arguments=["x"])
    assert [str(one.message).partition(": who")[0] for one in told] == [
        "text:3: --partition", "no mail is sent: the settings of this host do not say how",
    ]  # fmt: skip
    assert {one.filename for one in told} == {__file__}
    assert asked[-1].notify == () and asked[-1].spec.argv[-1] == "x"


# -- the image


@pytest.fixture
def pulls(monkeypatch):
    """What was pulled. The store has ``there``; no registry has ``gone``."""
    asked = []

    def get(self, name):
        if name != "there":
            raise UnknownImage("there is no image", hint="pull it")

    def pull(self, name, *, platform, policy, progress):
        asked.append((name, policy, progress))
        if name == "gone":
            raise NotFound("not in the registry")
        return SimpleNamespace(name=f"pulled-{name}")

    monkeypatch.setattr(Store, "get", get)
    monkeypatch.setattr(Store, "find", get)
    monkeypatch.setattr(Store, "pull", pull)
    return asked


def tell(step: object) -> None:
    pass


@pytest.mark.parametrize(
    ("image", "policy", "name", "asked"),
    [
        ("host", "always", "host", []), ("x", "never", "x", []), ("there", "missing", "there", []),
        ("x", "missing", "pulled-x", [("x", "missing", tell)]), ("there", "always", "pulled-there", [("there", "always", tell)]),
        ("x", "newer", "pulled-x", [("x", "newer", tell)]), ("sha256:01234567", "always", "sha256:01234567", []),
        ("sha256:0123456", "always", "pulled-sha256:0123456", [("sha256:0123456", "always", tell)]),
    ],
)  # fmt: skip
def test_what_is_pulled(pulls, image, policy, name, asked):
    assert pulling.present(image, policy, tell) == name and pulls == asked
    pulls.clear()
    assert pulling.present_for(DAEMON, image, policy, tell) == name and pulls == asked


def test_why_it_was_to_be_pulled(pulls):
    for policy, notes in (("missing", ["the store has no image 'gone', so it was to be pulled"]), ("always", [])):
        with pytest.raises(NotFound) as caught:
            pulling.present("gone", policy)
        assert list(getattr(caught.value, "__notes__", ())) == notes
    assert pulling.present("x") == "pulled-x" and pulls[-1] == ("x", "missing", None)
    assert pulling.present_for(DAEMON, "x") == "pulled-x" and pulls[-1] == ("x", "missing", None)


@pytest.mark.parametrize("policy", ["missing", "never"])
def test_the_store_of_another_daemon_is_left_alone(pulls, policy):
    assert pulling.present_for(OTHERS, "x", policy) == "x" and pulling.present_for(OTHERS, "host", "newer") == "host" and pulls == []


@pytest.mark.parametrize(
    ("daemon", "image", "hint"),
    [
        (DAEMON, "there", "the daemon at /s has another DOCKLESS_HOME: start it with ours, or pull the image there"),
        (DAEMON, "x", "pull it"),
        (OTHERS, "x", "the daemon takes images from the store of {0}; ask {0} to run: dockless pull x"),
    ],
)
def test_whose_store_lacks_it(pulls, daemon, image, hint):
    with pytest.raises(UnknownImage) as caught, pulling.told_whose_store(daemon, image):
        raise UnknownImage("there is no image", hint="pull it")
    assert caught.value.hint == hint.format(pulling._owner(daemon))


def test_a_user_without_a_name_has_a_number():
    assert pulling._owner(replace(DAEMON, owner_uid=0)) == "root"
    assert pulling._owner(replace(DAEMON, owner_uid=4_000_000_000)) == "user 4000000000"


def test_the_capabilities_of_a_request_are_the_programs_variable_as_with_docker():
    variables = {"NVIDIA_DRIVER_CAPABILITIES": "all", "A": "1"}
    job = make_job("busybox", ["true"], {"gpus": "device=0,capabilities=gpu,utility,video", "env": variables})
    assert sorted(job.spec.env) == [("A", "1"), ("NVIDIA_DRIVER_CAPABILITIES", "utility,video")]
    assert job.gpus == "device=0,capabilities=gpu,utility,video"
    assert make_job("busybox", ["true"], {"gpus": "capabilities=gpu"}).spec.env == ()
