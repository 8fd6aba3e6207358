"""``simulate`` on the command line."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.requires import requires

from dockless.cli import main
from dockless.cli.simulated_host import simulated_host, units_of
from dockless.sched.policy.replay import TraceJob

TRACE = """\
submitted,run,gpus,user,time_limit
0,100,3,anna,100
1,50,4,ben,50
2,98,1,carl,98
3,,1,carl,98
4,10,9,ben,10
"""


@pytest.fixture
def say(home, capfd, tmp_path):
    (tmp_path / "jobs.csv").write_text(TRACE)

    def say(*words: str) -> tuple[int, str, str]:
        code = main(["simulate", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return say


@pytest.fixture
def jobs(tmp_path) -> str:
    return str(tmp_path / "jobs.csv")


def test_two_policies(say, jobs):
    code, out, err = say(jobs, "--gpus", "4", "--policy", "fifo", "--policy", "backfill")
    assert code == 0
    assert out == (
        "POLICY    JOBS  MEAN WAIT  P95    LONGEST  GPUS USED  LASTS\n"
        "fifo      3     1m22s      2m28s  2m28s    60.3 %     4m8s\n"
        "backfill  3     33s        1m39s  1m39s    99.7 %     2m30s\n"
        "\n"
        "USER  JOBS  GPU-HOURS  MEAN WAIT fifo  P95 fifo  MEAN WAIT backfill  P95 backfill\n"
        "anna  1     0.1        0s              0s        0s                  0s\n"
        "ben   1     0.1        1m39s           1m39s     1m39s               1m39s\n"
        "carl  1     0.0        2m28s           2m28s     0s                  0s\n"
    )
    assert err == (
        "dockless: 1 job of the trace left out: nobody knows how long it runs\n"
        "dockless: fifo: 1 job could never start\n  hint: they ask for more than the host has, or a quota allows\n"
        "dockless: backfill: 1 job could never start\n  hint: they ask for more than the host has, or a quota allows\n"
    )


def test_json(say, jobs):
    code, out, _ = say(jobs, "--gpus", "4", "--json")
    found = json.loads(out)
    assert (code, found["gpus"], found["left_out"]) == (0, 4, 1)
    (one,) = found["results"]
    assert (one["policy"], one["jobs"], one["never"], one["mean_wait"], one["longest_wait"], one["lasts"]) == (
        "backfill",
        3,
        1,
        33,
        99,
        150,
    )
    assert one["users"][0] == {"user": "anna", "gpu_seconds": 300, "jobs": 1, "mean_wait": 0, "p95_wait": 0, "longest_wait": 0}


def test_settings_beside_each_other(say, jobs, tmp_path):
    """Carl and Anna share a quota, Ben has one of his own."""
    for name, most in (("a.toml", 3), ("b.toml", 4)):
        (tmp_path / name).write_text(f'[quota.groups]\nvision = {most}\n[groups]\nvision = ["anna", "carl"]\n[quota.users]\nben = 4\n')
    names = [str(tmp_path / name) for name in ("a.toml", "b.toml")]
    _, out, _ = say(jobs, "--gpus", "8", "--json", "--config", names[0], "--config", names[1])
    found = {one["policy"]: {user["user"]: user["mean_wait"] for user in one["users"]} for one in json.loads(out)["results"]}
    assert found == {f"backfill, {names[0]}": {"anna": 0, "ben": 0, "carl": 98}, f"backfill, {names[1]}": {"anna": 0, "ben": 0, "carl": 0}}


def test_settings_of_guarantees_and_of_the_order(say, tmp_path):
    trace, settings = tmp_path / "two.csv", tmp_path / "a.toml"
    trace.write_text("submitted,run,gpus,user,time_limit\n0,3600,4,ben,\n10,10,1,anna,\n11,10,4,ben,\n12,10,4,anna,\n")
    rows = {}
    for order in ("fifo", "fair"):
        settings.write_text(f'[quota.users]\nanna.guarantee = 2\n[preempt]\nafter = "30m"\ngrace = "60s"\n[queue]\norder = "{order}"\n')
        _, out, err = say(str(trace), "--gpus", "4", "--json", "--config", str(settings))
        assert err == "dockless: backfill: 1 job gave GPUs back and started again from the beginning; 2.1 GPU-hours were in vain\n"
        rows[order] = {user["user"]: user["longest_wait"] for user in json.loads(out)["results"][0]["users"]}
    assert rows == {"fifo": {"ben": 5459, "anna": 5468}, "fair": {"ben": 5469, "anna": 1858}}


def test_a_guarantee_of_a_class(say, tmp_path):
    trace, settings = tmp_path / "two.csv", tmp_path / "a.toml"
    trace.write_text("submitted,run,gpus,user,class,time_limit\n0,3600,2,ben,H100,\n10,10,1,anna,H100,\n")
    waits = []
    for said in ("guarantee = 1", "limit = 1"):
        settings.write_text(f'[quota.users]\nanna.classes.H100.{said}\n[preempt]\nafter = "1m"\ngrace = "30s"\n')
        _, out, _ = say(str(trace), "--gpus", "H100=2,A100=2", "--json", "--config", str(settings))
        waits.append(longest_waits(out)[1]["anna"])
    assert waits == [80, 3590]


DAY = """\
submitted,run,gpus,user,group,time_limit,class,cores
2026-11-24T09:00:00,3600,2,anna,,3600,H100,8
2026-11-24T09:00:00,60,1,anna,,60,1g.10gb,
2026-11-24T09:30:00,7200,1,ben,,7200,A100,
2026-11-24T09:30:00,7200,1,ben,,7200,,
2026-11-24T10:00:00,1800,3,carl,ml,1800,,
2026-11-24T10:10:00,60,1,dan,,60,memory=60G,
2026-11-24T10:20:00,600,0,eve,,600,,12
2026-11-24T10:20:00,600,1,fred,,600,L40,
"""
HOURS = """
[host]
cores = 16
[reservations.course]
gpus = 3
cores = 8
groups = ["ml"]
start = "2026-11-24T10:00"
duration = "2h"
"""
OF_CLASSES = "H100:80G=2,A100:40G=2,1g.10gb=4"


@pytest.fixture
def day(tmp_path) -> list[str]:
    (tmp_path / "day.csv").write_text(DAY)
    (tmp_path / "day.toml").write_text(HOURS)
    return [str(tmp_path / "day.csv"), "--config", str(tmp_path / "day.toml"), "--gpus", OF_CLASSES]


def test_classes_reserved_hours_and_cores(say, day):
    """From 10 to 12 others have one GPU and eight cores: Ben's second job waits for his first, Dan for Ben, and Eve for the end of the
    hours. Nobody has an L40."""
    code, out, err = say(*day, "--json")
    (found,) = json.loads(out)["results"]
    assert code == 0 and json.loads(out)["gpus"] == 8 and found["never"] == 1
    assert {row["user"]: row["longest_wait"] for row in found["users"]} == {"anna": 0, "ben": 7200, "carl": 0, "dan": 6600, "eve": 6000}
    waits = {row["class"]: row["mean_wait"] for row in found["classes"]}
    assert waits == {"": 3600, "1g.10gb": 0, "A100": 0, "H100": 0, "memory=60G": 6600, None: 6000}
    lasts = 4.5 * 3600
    assert found["lasts"] == lasts and found["cores_asked"] == pytest.approx((8 * 3600 + 12 * 600) / (16 * lasts), abs=1e-6)
    assert err == "dockless: backfill: 1 job could never start\n  hint: they ask for more than the host has, or a quota allows\n"
    code, out, err = say(*day)
    assert "  CORES ASKED  LASTS" in out and "  13.9 %  " in out
    assert "CLASS       JOBS  MEAN WAIT  P95\nany         2     1h         2h\n" in out and "\nno GPUs     1     1h40m      1h40m\n" in out


def test_groups_of_the_settings_that_have_no_quota_count_in_none(tmp_path):
    """As in the daemon, where such a group is one of reserved hours alone; and a job with GPUs counts for the cores that it asks for."""
    settings = tmp_path / "a.toml"
    settings.write_text('[host]\ncores = 16\ncores_per_job = 2\n[quota.groups]\nml = 3\n[groups]\nml = ["anna"]\nlab = ["anna", "ben"]\n')
    jobs = [TraceJob(0, 1, 1, "anna"), TraceJob(0, 1, 0, "ben"), TraceJob(0, 1, 1, "carl", cores=4000)]
    found = simulated_host(str(settings), units_of("4"), jobs)
    assert [job.groups for job in found.jobs] == [("ml",), (), ()]
    assert [found.asked("cores", job) for job in jobs] == [0, 2000, 4000]


def test_each_of_the_hours_of_several_reservations(tmp_path):
    """Those that begin while others last, too."""
    settings = tmp_path / "a.toml"
    one = '[reservations.{}]\ngpus = 1\nusers = ["anna"]\nstart = "{}"\nduration = "{}"\n'
    settings.write_text(one.format("long", "2026-11-24T00:00", "48h") + one.format("short", "daily 10:00", "1h"))
    found = simulated_host(str(settings), units_of("4"), [])
    begins = time.mktime((2026, 11, 24, 0, 0, 0, 0, 0, -1))
    hours = found.hours_between(begins, begins + 2 * 86400)
    assert [(one.name, one.starts - begins) for one in hours] == [("long", 0.0), ("short", 36000.0), ("short", 36000.0 + 86400)]


def test_hours_that_never_let_it_start(say, day, tmp_path):
    """Each day has all of its 24, so it is looked at for a while only."""
    (tmp_path / "day.toml").write_text(
        HOURS.replace("2026-11-24T10:00", "daily 10:00").replace("2h", "24h").replace("[host]\ncores = 16", "")
    )
    _, out, err = say(*day, "--json")
    (found,) = json.loads(out)["results"]
    assert (found["jobs"], found["never"]) == (6, 2)  # Anna's job of two, which others never have together, and Fred's
    assert "dockless: backfill: reserved cores are not counted\n  hint: say in the settings how much the host has: host.cores\n" in err


def test_reserved_hours_that_add_up_to_more_than_there_is(say, tmp_path):
    """The later ones keep what is left. Each kept the members of the other from all."""
    hours = '[reservations.%s]\ngpus = 6\nusers = ["%s"]\nstart = "2026-11-02T10:00"\nduration = "2h"\n'
    (tmp_path / "two.toml").write_text(hours % ("a", "anna") + hours % ("b", "ben"))
    (tmp_path / "two.csv").write_text(
        "submitted,run,gpus,user\n2026-11-02T10:10,600,6,anna\n2026-11-02T10:10,600,2,ben\n2026-11-02T10:10,60,4,ben\n"
    )
    _, out, _ = say(str(tmp_path / "two.csv"), "--gpus", "8", "--config", str(tmp_path / "two.toml"), "--json")
    (found,) = json.loads(out)["results"]
    assert {row["user"]: row["longest_wait"] for row in found["users"]} == {"anna": 0, "ben": 6600}


def test_a_column_that_is_a_slip_of_one_is_told(say, tmp_path):
    for head, slip, meant in (("gpu,user", "gpu", "gpus"), ("gpus,time_limt", "time_limt", "time_limit"), ("gpus,clas", "clas", "class")):
        (tmp_path / "slip.csv").write_text(f"submitted,run,{head}\n0,1,1,x\n")
        code, _, err = say(str(tmp_path / "slip.csv"), "--gpus", "1")
        assert code == 125 and f"has a column {slip!r}, which is not read\n  hint: did you mean {meant}?" in err
    (tmp_path / "more.csv").write_text("job_id,submitted,run,gpus,model_name\n1,0,1,1,x\n")
    assert say(str(tmp_path / "more.csv"), "--gpus", "1")[0] == 0


def test_standard_input(say, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TRACE.encode())))
    code, out, _ = say("-", "--gpus", "4", "--json")
    assert code == 0 and json.loads(out)["results"][0]["jobs"] == 3


def test_the_gpus_of_this_host(say, jobs, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "4x80G")
    _, out, _ = say(jobs, "--json")
    assert json.loads(out)["gpus"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.csv", "--gpus", "1"), "cannot read nowhere.csv: No such file or directory\n  hint: give a trace"),
        (("JOBS", "--gpus", "5000"), "5000 GPUs are more than one host has"),
        (("JOBS", "--gpus", "0"), "--gpus '0' cannot be read"),
        (("JOBS", "--gpus", "H100=4,=2"), "cannot be read at '=2'\n  hint: write how many, 8, or how many of each class"),
        (("JOBS", "--gpus", "H100:lots=4"), "memory of a GPU 'lots'"),
        (("JOBS", "--gpus", "1", "--policy", "random"), "--policy cannot be 'random'"),
        (("JOBS", "--gpus", "1", "--config", "/nowhere.toml"), "/nowhere.toml is not there"),
        (("JOBS", "--gpus", "1", "--chart", "x.pdf"), "x.pdf is neither .svg nor .png"),
        (("/dev/null", "--gpus", "1"), "/dev/null has no column 'run'"),
        ((sys.executable, "--gpus", "1"), "is not a text in UTF-8"),
    ],
)
def test_what_is_wrong(say, jobs, words, said):
    code, out, err = say(*(jobs if word == "JOBS" else word for word in words))
    assert (code, out) == (125, "") and said in err and "\n  hint: " in err


def test_a_chart_without_its_library(say, jobs, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = say(jobs, "--gpus", "4", "--chart", str(tmp_path / "x.svg"))
    assert (code, out) == (125, "")
    assert err == "dockless: a chart needs Matplotlib, which is not installed\n  hint: pip install 'dockless[chart]'\n"


@requires("module:matplotlib")
def test_a_chart(say, jobs, tmp_path):
    """In a process of its own: Matplotlib keeps its fonts open."""

    def drawn(name: str, *policies: str) -> bytes:
        words = [word for policy in policies for word in ("--policy", policy)]
        command = [sys.executable, "-P", "-m", "dockless", "simulate", jobs, "--gpus", "4", *words, "--chart", tmp_path / name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return (tmp_path / name).read_bytes()

    text = drawn("gpus.svg", "fifo", "backfill").decode()
    for word in ("fifo: mean wait 1m22s, 60.3 % used", "backfill: mean wait 33s, 99.7 % used", "anna", "carl", "minutes", "GPUs"):
        assert f">{word}</text>" in text
    assert drawn("gpus.png").startswith(b"\x89PNG")


@requires("module:matplotlib")
def test_a_chart_of_classes_hours_and_cores(day, home, tmp_path):
    """A panel for each kind of GPUs, and one of cores; in each the hours."""
    file = tmp_path / "day.svg"
    subprocess.run([sys.executable, "-P", "-m", "dockless", "simulate", *day, "--chart", file], check=True, capture_output=True)
    text = file.read_text()
    for word in ("H100", "A100", "1g.10gb", "cores", "course", "hours", "eve"):
        assert f">{word}</text>" in text
    assert text.count("opacity: 0.15") == 4


def test_an_interrupt_ends_it(home, tmp_path):
    """Once it has said how far it is, on a terminal."""
    (tmp_path / "long.csv").write_text(
        "submitted,run,gpus,user\n" + "".join(f"{number},1000,1,u{number % 50}\n" for number in range(40_000))
    )
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "dockless", "simulate", tmp_path / "long.csv", "--gpus", "4"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    try:
        said = b""
        while b" % of 40000 jobs" not in said:
            said += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", None) and process.returncode == 130
        assert os.read(ours, 4096).endswith(b"\r\033[K")  # nothing is left of it
    finally:
        process.kill()
        os.close(ours)


def longest_waits(out: str) -> tuple[int, dict[str, float], float]:
    """How many never start; how long each user's jobs wait; the part of the GPUs' time that is used."""
    (found,) = json.loads(out)["results"]
    return found["never"], {row["user"]: row["longest_wait"] for row in found["users"]}, found["utilisation"]


def test_devices_of_other_kinds_are_for_those_who_ask_for_them(say, tmp_path):
    trace = tmp_path / "devices.csv"
    trace.write_text(
        "submitted,run,gpus,user,class\n0,100,2,anna,amd.com/gpu\n0,10,3,ben,\n1,10,1,carl,amd.com/gpu\n2,10,2,dora,\n3,1,1,eve,memory=10G\n4,1,3,fred,whole\n"
    )
    _, out, _ = say(str(trace), "--gpus", "H100:80G=2,amd.com/gpu=2", "--json")
    assert longest_waits(out)[:2] == (2, {"anna": 0, "dora": 0, "carl": 99, "eve": 9})


def test_devices_of_this_host(say, tmp_path, home, monkeypatch):
    """Those of the kinds that the settings name which are tried."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")
    (tmp_path / "cdi").mkdir(mode=0o755)
    nodes = {"0": "/dev/null", "1": "/dev/zero"}
    devices = [{"name": name, "containerEdits": {"deviceNodes": [{"path": path}]}} for name, path in nodes.items()]
    (tmp_path / "cdi" / "amd.json").write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "amd.com/gpu", "devices": devices}))
    (home / "dockless.toml").write_text(f'[gpus]\ncdi = ["{tmp_path / "cdi"}"]\n')
    (tmp_path / "a.toml").write_text('[gpus]\ndevices = ["amd.com/gpu"]\n')
    (tmp_path / "one.csv").write_text("submitted,run,gpus,user,class\n0,100,2,anna,amd.com/gpu\n")
    _, out, _ = say(str(tmp_path / "one.csv"), "--json", "--config", str(tmp_path / "a.toml"))
    assert json.loads(out)["gpus"] == 3 and longest_waits(out)[0] == 0
    _, out, _ = say(str(tmp_path / "one.csv"), "--json")
    assert json.loads(out)["gpus"] == 1 and longest_waits(out)[0] == 1


TOGETHER = """\
submitted,run,gpus,user,together,time_limit
0,100,1,anna,a,200
10,10,2,ben,,
5,40,1,anna,a,50
10,10,1,carl,,
6,30,0,carl,a,
6,-1,0,carl,a,
"""


def test_jobs_that_start_together(say, tmp_path):
    """They have the GPUs of all from the last one's submission until the last has ended, are one job to the queue, and several to a quota.
    Of another user's with the same word nobody knows how long one ran: none of them is there."""
    trace, settings = tmp_path / "gang.csv", tmp_path / "a.toml"
    trace.write_text(TOGETHER)
    _, out, err = say(str(trace), "--gpus", "3", "--json")
    assert json.loads(out)["left_out"] == 2 and "2 jobs of the trace left out" in err
    assert json.loads(out)["results"][0]["jobs"] == 3
    assert longest_waits(out)[:2] == (0, {"anna": 0, "ben": 95, "carl": 0})
    settings.write_text("[quota.users]\nanna = { jobs = 1 }\n")
    _, out, _ = say(str(trace), "--gpus", "3", "--json", "--config", str(settings))
    assert longest_waits(out)[:2] == (1, {"ben": 0, "carl": 0})
    rows = [
        {
            "id": number,
            "array": 7,
            "user": "anna",
            "gpu_count": 1,
            "submitted": 1.0,
            "started": 2.0,
            "ended": 12.0,
            "options": {"role": role},
        }
        for number, role in ((7, "master"), (8, "worker"))
    ]
    trace.write_text(json.dumps(rows))
    _, out, _ = say(str(trace), "--gpus", "1", "--json")
    assert longest_waits(out)[0] == 1
    many = "".join("0,1,0,anna,a\n" for _ in range(257))
    trace.write_text("submitted,run,gpus,user,together\n" + many)
    code, _, err = say(str(trace), "--gpus", "1")
    assert code == 125 and "257 jobs start together as 'a', and at most 256 can" in err
    trace.write_text("submitted,run,gpus,user,together,class\n0,1,1,anna,a,H100\n0,1,1,anna,a,A100\n")
    code, _, err = say(str(trace), "--gpus", "H100=1,A100=1")
    assert code == 125 and "jobs of anna that start together ask for GPUs of different classes: A100, H100" in err


def test_what_those_need_and_how_long_they_run_who_start_together(say, tmp_path):
    """Each of those without GPUs counts for what the settings say; all have ended when the last has, each by its own time limit."""
    trace, settings = tmp_path / "gang.csv", tmp_path / "a.toml"

    def found(rows: str, said: str) -> tuple[int, dict[str, float], float]:
        trace.write_text("submitted,run,gpus,user,together,time_limit\n" + rows)
        settings.write_text(said)
        _, out, _ = say(str(trace), "--gpus", "2", "--json", "--config", str(settings))
        return *longest_waits(out)[:2], json.loads(out)["results"][0]["lasts"]

    three = 3 * "0,10,0,anna,a,\n"
    assert found(three, "[host]\ncores = 4\ncores_per_job = 2\n") == (1, {}, 0)
    assert found(three, "[host]\ncores = 6\ncores_per_job = 2\n") == (0, {"anna": 0}, 10)
    pairs = 2 * "0,10,1,anna,a,\n" + "1,10,0,anna,b,\n" * 2
    assert found(pairs, "[quota.users]\nanna = { jobs = 3 }\n") == (0, {"anna": 9}, 20)
    assert found(pairs, "[quota.users]\nanna = { jobs = 4 }\n") == (0, {"anna": 0}, 11)
    assert found("0,100,1,anna,a,50\n0,60,1,anna,a,100\n", "")[2] == 60
    assert found("0,300,1,anna,a,\n0,40,1,anna,a,50\n", "")[2] == 300


def test_shares_of_gpus(say, tmp_path):
    """Three of 30G: two have one GPU of 80G together, and use three quarters of it. Alone on it each has all."""
    trace, settings = tmp_path / "shares.csv", tmp_path / "a.toml"
    jobs = "".join(f"0,100,1,{user},memory=30G\n" for user in ("anna", "anna", "anna", "ben"))
    trace.write_text("submitted,run,gpus,user,class\n" + jobs)
    found = {}
    for share in ("no", "user", "all"):
        settings.write_text(f'[gpus]\nshare = "{share}"\n')
        _, out, _ = say(str(trace), "--gpus", "H100:80G=1", "--json", "--config", str(settings))
        found[share] = longest_waits(out)
    assert found["no"] == (0, {"anna": 200, "ben": 300}, 1)
    assert found["user"] == (0, {"anna": 100, "ben": 200}, 0.5)
    assert found["all"] == (0, {"anna": 100, "ben": 100}, 0.75)
    settings.write_text('[gpus]\nshare = "user"\n')
    trace.write_text("submitted,run,gpus,user,class,together\n" + 3 * "0,100,1,anna,memory=20G,a\n" + "0,100,1,ben,memory=20G,\n")
    _, out, _ = say(str(trace), "--gpus", "H100:80G=2", "--json", "--config", str(settings))
    assert longest_waits(out) == (0, {"anna": 0, "ben": 0}, 0.625)  # three on one GPU, which is theirs
    hoppers = '0,100,1,anna,"H100,memory=20G",a\n'
    trace.write_text(f"submitted,run,gpus,user,class,together\n{2 * hoppers}0,100,1,ben,A100,\n")
    _, out, _ = say(str(trace), "--gpus", "A100:40G=1,H100:80G=1", "--json", "--config", str(settings))
    assert longest_waits(out) == (0, {"anna": 0, "ben": 0}, 1)  # they have a GPU of their class
    trace.write_text("submitted,run,gpus,user,class\n0,100,2,anna,memory=30G\n0,100,1,anna,memory=30G\n")
    _, out, _ = say(str(trace), "--gpus", "H100:80G=2", "--json", "--config", str(settings))
    assert longest_waits(out)[:2] == (0, {"anna": 100})  # two are whole
    trace.write_text("submitted,run,gpus,user,class\n" + 2 * "0,100,1,anna,memory=40G\n")
    for mps, waits in (("no", 0), ("yes", 100)):  # NVIDIA's service keeps some for itself
        settings.write_text(f'[gpus]\nshare = "user"\nmps = "{mps}"\n')
        _, out, _ = say(str(trace), "--gpus", "H100:80G=1", "--json", "--config", str(settings))
        assert longest_waits(out)[1] == {"anna": waits}
