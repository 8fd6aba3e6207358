"""dockless.toml: one list of settings, one strict reader, the same verdict from everybody who reads it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dockless import doctor
from dockless.base import paths, settings, settings_told
from dockless.cli import main
from dockless.errors import BadInput
from dockless.images.catalog import disk_usage
from dockless.sched import config
from dockless.sched.engine.host import host_supplies
from dockless.sched.policy import quotas
from dockless.sched.policy.supplies import Supply

WEEKLY = "[reservations.ml]\ngpus = 1\nusers = ['anna']\nstart = 'Mon 10:00'\nduration = '2h'\n"
CLASSES = {"1g.10gb": 2, "H100": 0, "A100": {"limit": 4, "guarantee": 3, "weight": 3}}
SOUND = """# all of it
[images]
max_size = "1.5G"

[quota]
default = 2
[quota.users]
"anna.b" = 4
[quota.users.ben]
guarantee = 3
weight = 2
limit = 3
jobs = 20
cpu_jobs = 8
classes = { "1g.10gb" = 2, H100 = 0, A100 = { limit = 4, guarantee = 3, weight = 3 } }
[quota.groups]
vision = 6
[reservations.ml101]
gpus = 4
users = ["anna"]
start = "Mon,Wed 10:00"
duration = "2h"
[reservations.demo]
gpus = 1
groups = ["vision"]
start = 2026-11-24 10:00:00
duration = 3600
cores = 8
memory = "32G"
[groups]
vision = [
  "anna",   # on several lines
  "bob",
]
[queue]
per_user = 50
per_user_size = "1M"
keep_days = 8
keep_jobs = 9
order = "fair"
half_life = "2d"
[preempt]
after = 60
grace = "1m"
signal = "USR1"
[host]
cpu_jobs = 3
admins = ["carl"]
admin_groups = ["ops"]
cores = 30
memory = "100G"
cores_per_gpu = 2
numa = "near"
own_cores = "no"
memory_per_gpu = "8G"
cores_per_job = 1
memory_per_job = "1G"
[gpus]
beside = ["gds", "imex"]
driver_root = "/run/nvidia/driver/"
share = "user"
devices = ["amd.com/gpu"]
cdi = ["/srv/cdi"]
mps = "yes"
idle_after = "2h"
idle_notice = 90
[volumes]
"/mnt/$USER" = "/srv/users/$USER"
"/data.d" = "/srv/data"
[networks]
forward = "both"
[notify]
sendmail = "/usr/sbin/sendmail"
smtp = "mail:25"
sender = "q@lab"
domains = ["lab"]
webhook = "https://chat/x"
[disk]
per_job = "50G"
per_user = "1T"
[logs]
keep_days = 7
per_user = "2M"
size = "3M"
size_limit = "4M"
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path))
    return tmp_path


def written(text: str | bytes) -> None:
    paths.config_file().write_bytes(text.encode() if isinstance(text, str) else text)


def refused(text: str | bytes) -> BadInput:
    written(text)
    with pytest.raises(BadInput) as caught:
        settings.load()
    return caught.value


def test_every_setting_is_read(home):
    written(SOUND)
    found = settings.load()
    assert found == {
        "images.max_size": 3 << 29,
        "quota.default": 2,
        "quota.users": {"anna.b": 4, "ben": {"guarantee": 3, "weight": 2, "limit": 3, "jobs": 20, "cpu_jobs": 8, "classes": CLASSES}},
        "quota.groups": {"vision": 6},
        "reservations": {
            "ml101": {"gpus": 4, "users": ("anna",), "start": "Mon,Wed 10:00", "duration": 7200.0},
            "demo": {"gpus": 1, "groups": ("vision",), "start": "2026-11-24 10:00:00", "duration": 3600.0, "cores": 8, "memory": 32 << 30},
        },
        "groups": {"vision": ("anna", "bob")},
        "queue.per_user": 50,
        "queue.per_user_size": 1 << 20,
        "gpus.beside": ("gds", "imex"),
        "gpus.driver_root": "/run/nvidia/driver",
        "gpus.share": "user",
        "gpus.devices": ("amd.com/gpu",),
        "gpus.cdi": ("/srv/cdi",),
        "gpus.mps": "yes",
        "gpus.idle_after": 7200.0,
        "gpus.idle_notice": 90.0,
        "networks.forward": "both",
        "notify.sendmail": "/usr/sbin/sendmail",
        "notify.smtp": "mail:25",
        "notify.sender": "q@lab",
        "notify.domains": ("lab",),
        "notify.webhook": "https://chat/x",
        "queue.keep_days": 8,
        "queue.keep_jobs": 9,
        "queue.order": "fair",
        "queue.half_life": 172800.0,
        "preempt.after": 60.0,
        "preempt.grace": 60.0,
        "preempt.signal": 10,
        "host.cpu_jobs": 3,
        "host.cores": 30,
        "host.memory": 100 << 30,
        "host.cores_per_gpu": 2,
        "host.numa": "near",
        "host.own_cores": "no",
        "host.memory_per_gpu": 8 << 30,
        "host.cores_per_job": 1,
        "host.memory_per_job": 1 << 30,
        "host.admins": ("carl",),
        "host.admin_groups": ("ops",),
        "volumes": {"/mnt/$USER": "/srv/users/$USER", "/data.d": "/srv/data"},
        "disk.per_job": 50 << 30,
        "disk.per_user": 1 << 40,
        "logs.keep_days": 7,
        "logs.per_user": 2 << 20,
        "logs.size": 3 << 20,
        "logs.size_limit": 4 << 20,
    }
    assert disk_usage.bound() == 3 << 29
    daemons = config.load(paths.config_file())
    assert daemons.quotas.of("user", "anna.b").limit == 4
    assert host_supplies.here(daemons) == {"cores": Supply(30000, 2000, 1000), "memory": Supply(100 << 30, 8 << 30, 1 << 30)}


def settings_of_the_manual() -> list[str]:
    text = (Path(__file__).resolve().parents[2] / "docs" / "queue.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```toml\n")[1:]]
    return [block for block in blocks if "command =" not in block]


@pytest.mark.parametrize("text", settings_of_the_manual())
def test_the_settings_of_the_manual_are_right(home, text):
    (home / "dockless.toml").write_text(text)
    config.load(home / "dockless.toml")


def test_a_quota_for_everybody_may_be_a_table(home):
    (home / "dockless.toml").write_text("[quota]\ndefault = { guarantee = 1, limit = 4 }\n")
    assert config.load(home / "dockless.toml").quotas.default == quotas.Quota(limit=4, guarantee=1)


def test_without_a_file_everything_is_as_it_comes(home):
    assert settings.load()["queue.per_user"] == 10_000
    assert config.load(paths.config_file()) == config.Config()
    assert disk_usage.bound() is None


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("\n[qutoa]\ndefault = 1\n", 2, ("[qutoa]", "did you mean [quota]?")),
        ("[quota.user]\nanna = 1\n", 1, ("[quota.user]", "did you mean [quota.users]?")),
        ("[images]\n\n# a bound\nmaxsize = 1\n", 4, ("images.maxsize", "did you mean images.max_size?")),
        ("max_size = 1\n", 1, ("max_size", "did you mean images.max_size?")),
        ("[images]\nmax_size = true\n", 2, ("images.max_size is true, not a size",)),
        ("[images]\nmax_size = 'much'\n", 2, ("images.max_size is 'much', not a size",)),
        ("[images]\nmax_size = -1\n", 2, ("images.max_size",)),
        ("images = 1\n", 1, ("images is a section: write [images]",)),
        ("[quota.users]\nanna = { limit = 3, jbos = 1 }\n", 2, ("no setting quota.users.anna.jbos", "did you mean jobs?")),
        ("[quota.users.anna]\nlimit = 3\njobs = 'few'\n", 3, ("quota.users.anna.jobs is 'few', not a whole number from 0", "run at once")),
        ("[quota]\ndefault = { limit = { x = 1 } }\n", 2, ("quota.default.limit is a section, not a whole number",)),
        ("[volumes]\n'/mnt' = 3\n", 2, ("volumes.'/mnt' is 3, not a whole path, in which $USER and $GROUP stand for names",)),
        ("[volumes]\n'/mnt' = 'srv'\n", 2, ("is 'srv', not a whole path",)),
        (
            "[volumes]\n'/proc/x' = '/srv'\n",
            2,
            ("volumes.'/proc/x' cannot be the place of a volume: /, /proc, /sys and /dev are the sandbox's own",),
        ),
        ("[volumes]\n'/mnt' = '/srv/../etc'\n", 2, ("is '/srv/../etc', not a whole path",)),
        ("[volumes]\n'/mnt' = '/srv/$GROUP'\n", 2, ("is '/srv/$GROUP': $GROUP stands on both sides or on none",)),
        ("[volumes]\n'/mnt/$GROUP' = '/srv'\n", 2, ("is '/srv': $GROUP stands on both sides or on none",)),
        ("[volumes]\n'/mnt/$GROUP' = '/srv/$USER/$GROUP'\n", 2, ("$USER cannot come before $GROUP",)),
        ("[volumes]\n'/mnt/$GROUP' = '/srv/$GROUPS'\n", 2, ("is '/srv/$GROUPS', not a whole path",)),
        ("[volumes]\n'/mnt' = '/srv/$USERS'\n", 2, ("is '/srv/$USERS', not a whole path",)),
        ('[volumes]\n"/mnt" = "/srv\\u0000"\n', 2, ("not a whole path",)),
        ("[volumes]\n'/' = '/srv'\n", 2, ("volumes.'/' cannot be the place of a volume, which is a whole path",)),
        ("[volumes]\nmnt = '/srv'\n", 2, ("volumes.mnt cannot be the place of a volume",)),
        ("[quota.users]\nanna = { guarantee = 4, limit = 3 }\n", 2, ("quota.users.anna.guarantee is more than the limit, 3", "borrow")),
        ("[quota.users]\nanna = { weight = 0 }\n", 2, ("quota.users.anna.weight is 0, not a whole number from 1",)),
        ("[queue]\norder = 'random'\n", 2, ("queue.order is 'random', not one of fifo, fair",)),
        ("[queue]\nhalf_life = '3 s'\n", 2, ("queue.half_life is '3 s', not a time, like",)),
        ("[queue]\nhalf_life = 59\n", 2, ("queue.half_life is 59, not a time", "from 60")),
        ("[preempt]\nsignal = 'HUGO'\n", 2, ("preempt.signal is 'HUGO', not a signal",)),
        ("[preempt]\nafter = true\n", 2, ("preempt.after is true, not a time",)),
        ("[quota]\ndefault = { nonsense = 1 }\n", 2, ("quota.default.nonsense", "the settings are guarantee, limit, ")),
        ("[quota]\nusers = 3\n", 2, ("quota.users is a section",)),
        ("[reservations]\nx = 3\n", 2, ("reservations.x is 3, not a table like", "hours for which GPUs, cores or memory are kept")),
        ("[reservations.x]\ngpus = 1\n", 1, ("reservations.x does not say start, duration, users or groups",)),
        (WEEKLY.replace("gpus = 1\n", ""), 1, ("reservations.ml does not say gpus, cores or memory",)),
        (WEEKLY.replace("gpus", "cores").replace("1", "0", 1), 2, ("reservations.ml.cores is 0, not a whole number from 1",)),
        ("[reservations.x]\ngpus = 0\n", 2, ("reservations.x.gpus is 0, not a whole number from 1",)),
        ("[reservations.x]\nstart = 'Mo 10:00'\n", 2, ("reservations.x.start is 'Mo 10:00', not a time, like \"2026", "time zone")),
        ("[reservations.x]\nstrat = 'Mon 10:00'\n", 2, ("no setting reservations.x.strat", "did you mean start?")),
        (WEEKLY.replace("ml", "'m\\nl'"), 1, ("is no name of a reservation",)),
        (WEEKLY.replace("2h", "8d"), 5, ("reservations.ml.duration is more than 7d, after which it begins again",)),
        (WEEKLY.replace("Mon", "Mon,Wed").replace("2h", "49h"), 5, ("reservations.ml.duration is more than 2d, after which",)),
        (WEEKLY.replace("Mon", "daily").replace("2h", "30h"), 5, ("reservations.ml.duration is more than 1d, after which",)),
        ("[quota.users]\nanna = { classes = 3 }\n", 2, ("quota.users.anna.classes is 3, not a table like",)),
        ("[quota.users.anna]\nclasses = { H100 = 'all' }\n", 2, ("quota.users.anna.classes.H100 is 'all', not a whole number", "a model")),
        ("[quota.users.anna]\nclasses = { 'a,b' = 1 }\n", 2, ("quota.users.anna.classes.'a,b' is no class of GPUs", "a MIG profile")),
        (
            "[quota.users.anna.classes.H100]\nlimit = 1\nwait = 2\n",
            3,
            ("no setting quota.users.anna.classes.H100.wait", "did you mean weight?"),
        ),
        ("[quota.users.anna]\nclasses = { H100 = { jobs = 1 } }\n", 2, ("classes.H100.jobs", "the settings are guarantee, limit, weight")),
        (
            "[quota.users.anna.classes]\nH100 = { weight = 0 }\n",
            2,
            ("classes.H100.weight is 0, not a whole number from 1", "jobs of the class"),
        ),
        ("[quota.users.anna.classes]\nH100 = { limit = '4' }\n", 2, ("classes.H100.limit is '4', not a whole number", "GPUs of the class")),
        ("[quota.users.anna.classes]\nH100 = [1]\n", 2, ("classes.H100 is a list, not a whole number or a table like", "a model")),
        (
            "[quota.users.anna.classes]\nH100 = { guarantee = 4, limit = 3 }\n",
            2,
            ("classes.H100.guarantee is more than the limit, 3", "borrow"),
        ),
        ("[quota.users.anna]\nlimit = 3\nclasses.H100.guarantee = 4\n", 3, ("classes.H100.guarantee is more than the limit, 3", "borrow")),
        ("[quota.users]\nbob = 1\nanna = 1.5\n", 3, ("quota.users.anna is 1.5, not a whole number",)),
        ("[quota]\ndefault = 99999999999\n", 2, ("quota.default",)),
        ("[queue]\nper_user = 0\n", 2, ("queue.per_user is 0, not a whole number from 1",)),
        ("[groups]\nx = []\nvision = [\n  'anna',\n  3,\n]\n", 3, ("groups.vision is a list with 3, not a list of names",)),
        ("[gpus]\ndevices = ['amd.com/gpu', 'nvidia.com/gpu']\n", 2, ("a list with 'nvidia.com/gpu', not a list of kinds", "need no name")),
        ("[host]\nadmins = 'carl'\n", 2, ("host.admins",)),
        ("[host]\nadmins = { carl = 1 }\n", 2, ("host.admins is a section",)),
        ("a.b.c = 1\n[a.d]\n", 1, ("[a]",)),
        ('[quota.users]\nx = """\n[quota]\n"""\n', 2, ("quota.users.x",)),
        ("[[queue]]\nper_user = 1\n", 1, ("queue is a section",)),
        ("['a\\nb']\n", 1, ("a",)),
    ],
)
def test_a_mistake_names_file_line_and_key(home, text, line, words):
    error = refused(text)
    assert f"{paths.config_file()}:{line}: " in str(error)
    for word in words:
        assert word in f"{error} {error.hint}"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[quota", "not TOML"),
        ("[quota]\ndefault = 1\ndefault = 2\n", "dockless.toml:3: this is not TOML"),
        (b"[quota]\n# \xff\n", ":2: this is not UTF-8"),
        ("x = " + "[" * 100_000, "nested"),
        ("x = " + "9" * 10_000, "not TOML"),
        ("#" * (2 << 20), "not a file of settings"),
    ],
)
def test_what_is_no_toml_is_said(home, text, word):
    assert word in str(refused(text))


def test_all_mistakes_are_told_at_once(home):
    """Of tables in tables, too; each with its line, and the nearest key."""
    path = paths.config_file()
    error = refused(
        "[qutoa]\na = 1\n[quota]\ndefalt = 2\ndefault = { limt = 1, jobs = 'x', classes = { H100 = -1, A100 = 'y' } }\n"
        "[reservations.x]\ngpu = 1\nusers = ['anna']\nstart = 'never'\nduration = '2h'\n[queue]\nper_user = 0\n[logs]\nsize = '1T'\n"
    )
    lines = [str(error), *error.__notes__]
    assert [int(line.removeprefix(f"{path}:").partition(":")[0]) for line in lines] == [1, 4, 5, 5, 5, 5, 7, 9, 6, 12, 14]
    assert lines[1] == f"{path}:4: there is no setting quota.defalt (did you mean quota.default?)"
    assert "default.limt (did you mean limit?)" in lines[2] and "does not say gpus" in lines[8]
    error = refused("".join(f"a{number} = 1\n" for number in range(100)))
    assert len(error.__notes__) == 20 and error.__notes__[-1] == "there may be more: correct these first"
    error = refused("[quota]\ndefault = { " + ", ".join(f"a{number} = 1" for number in range(100)) + " }\n")
    assert len(error.__notes__) == 20 and len(set(error.__notes__)) == 20  # each once, though it is a table in a table
    error = refused("a = 1\nzzzzzz = 1\n")
    assert error.__notes__ == [f"{path}:2: there is no setting zzzzzz"]  # the list of all settings is told with the first alone
    assert not hasattr(refused("a = 1\n"), "__notes__")


@pytest.mark.parametrize("what", ["directory", "fifo", "too long a name"])
def test_what_is_no_file_is_said(home, what):
    path = paths.config_file()
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path = path.with_name("x" * 300)
    with pytest.raises(BadInput, match=path.name):
        settings.load(path)


def test_everybody_has_the_same_verdict(home, capsys, tmp_path):
    """The daemon, the store's bound, every command that takes room and doctor: one sentence."""
    error = refused("[qutoa]\ndefault = 1\n")
    archive = tmp_path / "root.tar"
    archive.write_bytes(bytes(10240))
    for verdict in (lambda: config.load(paths.config_file()), disk_usage.bound):
        with pytest.raises(BadInput) as caught:
            verdict()
        assert str(caught.value) == str(error)
    for command in (["import", str(archive), "x:1"], ["df"]):
        assert main(command) == 125
        assert str(error) in capsys.readouterr().err
    (finding,) = [doctor._checked(name, check) for name, check in doctor.CHECKS if name == "settings"]
    assert (finding.status, finding.what, finding.next_step) == ("fail", str(error), error.hint)
    daemon = subprocess.run([sys.executable, "-P", "-m", "dockless.sched.daemon"], capture_output=True, text=True, timeout=60, check=False)
    assert daemon.returncode == 125 and str(error) in daemon.stderr


VALUES = st.recursive(
    st.booleans() | st.integers(-3, 3) | st.sampled_from(['"x"', '"1G"', "1.5", "inf", "1979-05-27"]),
    lambda inner: st.lists(inner, max_size=2).map(lambda items: "[" + ", ".join(map(_toml, items)) + "]"),
    max_leaves=3,
)
KEYS = st.sampled_from([*(s.key.replace("*", "anna") for s in settings.SETTINGS), "qutoa", "images", "quota.users.a.b", '"".x', "groups"])


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@given(st.lists(st.tuples(KEYS, VALUES), max_size=5))
@example([("images.max_size", 3)])
def test_any_file_is_read_or_refused_with_its_line(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("toml") / "dockless.toml"
    path.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in pairs))
    try:
        settings.load(path)
    except BadInput as error:
        assert str(path) in str(error) and error.hint


def test_defaults_are_written_once():
    """The daemon's view of the settings takes its defaults from the list."""
    text = Path(config.__file__).read_text()
    assert not re.search(r"= *\d[\d_]{2,}|<<", text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[quota]\ndefault = 1\n[quota.users]\nroot = 1\nnobody-here = 4\n", "5: quota.users.nobody-here: there is no user 'nobody-here'"),
        ('[quota.users]\n"0" = 1\n', "2: quota.users.0: there is no user '0': write the name"),
        ("[quota.groups]\nroot = 1\nno-such = 4\n", "3: quota.groups.no-such: there is no group 'no-such'"),
        ('[groups]\nours = ["root", "nobody-here"]\n', "2: groups.ours: there is no user 'nobody-here'"),
        ('[host]\ncpu_jobs = 1\nadmins = ["nobody-here"]\n', "3: host.admins: there is no user 'nobody-here'"),
        (WEEKLY.replace("anna", "nobody-here"), "3: reservations.ml.users: there is no user 'nobody-here'"),
        ('[host]\nadmin_groups = ["no-group"]\n', "2: host.admin_groups: there is no group 'no-group'"),
        (WEEKLY.replace("anna", "root").replace("Mon 10:00", "2020-01-01T10:00"), "4: reservations.ml.start: 2020-01-01T10:00 is over"),
        (
            "[quota]\ndefault = 1\n[quota.users]\nroot = { limit = 2, weight = 3 }\n",
            "4: quota.users.root.weight: is for order = \"fair\", and queue.order is 'fifo'",
        ),
        (
            "[quota.users.root]\nlimit = 1\nclasses = { whole = 1, H100 = { weight = 3 } }\n",
            "3: quota.users.root.classes.H100.weight: is for order = \"fair\", and queue.order is 'fifo'",
        ),
        ('[gpus]\nmps = "yes"\n', "2: gpus.mps: is for share = \"user\", and gpus.share is 'no'"),
        ('[host]\nadmins = ["no\\u0000body"]\n', "2: host.admins: there is no user 'no\\x00body'"),
    ],
)
def test_names_that_nobody_has_are_told(home, text, said):
    written(text)
    assert settings_told.without_effect() == [f"{paths.config_file()}:{said}"]
    settings.load()  # no error: an account may be removed while the file stays
    status, what, step = doctor._settings()
    assert (status, what) == ("note", f"{paths.config_file()}:{said}") and step


def test_each_weight_without_effect_is_told(home):
    written("[quota.users]\nroot = { weight = 3 }\n[quota.groups]\nroot = { weight = 2, classes = { whole = { weight = 4 } } }\n")
    places = ["2: quota.users.root.weight", "4: quota.groups.root.weight", "4: quota.groups.root.classes.whole.weight"]
    why = "is for order = \"fair\", and queue.order is 'fifo'"
    assert settings_told.without_effect() == [f"{paths.config_file()}:{place}: {why}" for place in places]
    written("[quota.groups.root.classes]\n" + "".join(f"C{number} = {{ weight = 2 }}\n" for number in range(30)))
    assert len(settings_told.without_effect()) == 20


@pytest.mark.parametrize("root", ["/no-such", "/etc/passwd"])
def test_a_driver_that_is_not_there_is_told(home, root):
    """Apart from what has no effect: it is why there are no GPUs."""
    written(f'[gpus]\nshare = "no"\ndriver_root = "{root}"\n')
    line = f"{paths.config_file()}:3: gpus.driver_root: there is no directory {root}, so no GPU of NVIDIA is found"
    assert (settings_told.missing_driver(), settings_told.without_effect()) == ([line], [])
    written('[gpus]\ndriver_root = "/"\n')
    assert settings_told.missing_driver() == []


def test_groups_of_the_file_need_no_group_of_the_system(home):
    written('[quota.groups]\nours = 2\n[groups]\nours = ["root"]\n')
    assert settings_told.without_effect() == []


def test_a_weight_has_an_effect_in_a_fair_order(home):
    written('[quota.users]\nroot = { weight = 2 }\n[queue]\norder = "fair"\n')
    assert settings_told.without_effect() == []


def test_without_a_file_no_name_is_unknown(home):
    assert settings_told.without_effect() == []


def test_processors_are_chosen_in_one_way():
    error = refused('[host]\nnuma = "near"\nown_cores = "yes"\n')
    assert f"{paths.config_file()}:3: host.own_cores is for numa = \"any\", and host.numa is 'near'" in str(error)
    assert error.hint == "leave one of them out"
    written('[host]\nown_cores = "yes"\n')
    assert settings.load()["host.own_cores"] == "yes"


def test_more_output_by_default_than_a_job_may_ask_for():
    error = refused('[logs]\nsize_limit = "1M"\nsize = "2M"\n')
    assert f"{paths.config_file()}:3: logs.size is more than logs.size_limit, 1M" in str(error)


def test_as_much_output_by_default_as_a_job_may_ask_for(home):
    written('[logs]\nsize_limit = "1M"\nsize = "1M"\n')
    assert settings.load()["logs.size"] == 1 << 20


@pytest.mark.parametrize(
    ("section", "value", "accepted"),
    [
        ("[quota]\ndefault", "0", True), ("[quota]\ndefault", "1000000000", True), ("[quota]\ndefault", "1000000001", False),
        ("[queue]\nper_user", "1", True), ("[queue]\nper_user", "0", False), ("[queue]\nper_user", "true", False),
        ("[queue]\nper_user", "1.0", False), ("[queue]\nper_user", "'5'", False),
        ("[queue]\nper_user_size", "1", True), ("[queue]\nper_user_size", "0", False), ("[queue]\nper_user_size", "true", False),
        ("[queue]\nper_user_size", "1.5", False), ("[queue]\nper_user_size", "[1]", False),
        ("[logs]\nsize", "8192", True), ("[logs]\nsize", "8191", False), ("[logs]\nsize_limit", "8192", True),
        ("[logs]\nsize_limit", "8191", False), ("[images]\nmax_size", "0", True),
        ("[host]\nadmins", "[]", True), ("[host]\nadmins", "['a', 5]", False), ("[host]\nadmins", "5", False),
        ("[host]\nadmins", "true", False),
    ],
)  # fmt: skip
def test_what_a_value_may_be(home, section, value, accepted):
    text = f"{section} = {value}\n"
    if accepted:
        written(text)
        settings.load()
    else:
        error = refused(text)
        key = section.replace("[", "").replace("]\n", ".")
        assert f":2: {key} is " in str(error) and error.subject == key and error.hint.startswith(f"{key}: ")


def test_what_is_shown_of_a_long_value(home):
    assert f"is '{'x' * 59}, not a size" not in str(refused(f"[images]\nmax_size = '{'x' * 100}'\n"))
    assert str(refused(f"[queue]\nper_user = '{'x' * 100}'\n")).endswith(f"is '{'x' * 59}, not a whole number from 1")


@pytest.mark.parametrize(("size", "sound"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_how_long_a_file_may_be(home, size, sound):
    text = "[quota]\ndefault = 7\n"
    text += "#" * (size - len(text))
    if sound:
        written(text)
        assert settings.load()["quota.default"] == 7
    else:
        assert "is not a file of settings" in str(refused(text))


def test_a_limit_below_the_default_bounds_it(home):
    written('[logs]\nsize_limit = "1M"\n')
    assert settings.load()["logs.size"] == 1 << 20


def test_the_default_quota_may_be_a_table(home):
    (home / "dockless.toml").write_text("[quota]\ndefault = { guarantee = 1, limit = 4 }\n")
    assert settings.load()["quota.default"] == {"guarantee": 1, "limit": 4}
