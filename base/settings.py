"""``dockless.toml``: the one list of settings, and the one reader of the file.

``SETTINGS`` says of each setting its key, its kind, its default and what it means. To add one, add a row; ``load`` then knows it. The
file is read strictly: an unknown section or key, a value of the wrong kind and a file that is not TOML are errors that name the line.

::

    [images]
    max_size = "200G"
    [quota.users]
    anna = 4
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from dockless.base import device_names, paths
from dockless.base.dataclass import dataclass
from dockless.base.findings import Findings
from dockless.base.later import re
from dockless.base.occasions import parse
from dockless.base.toml_lines import lines_of
from dockless.base.typing import Any, Literal
from dockless.base.units import exact_size, format_duration, parse_duration, parse_signal, parse_size
from dockless.errors import BadInput, DocklessError

Kind = Literal[
    "count", "size", "names", "path", "quota", "duration", "signal", "choice", "volume", "text", "classes", "reservation", "start"
]
USER, GROUP = "$USER", "$GROUP"
"""What stands for names in settings of the kind ``volume``."""

_KINDS = {
    "count": "a whole number", "size": 'a size, like "200G" or bytes', "names": "a list of names", "path": "a whole path",
    "quota": "a whole number or a table like { guarantee = 2, limit = 6 }", "duration": 'a time, like "30s", "7d" or seconds',
    "signal": 'a signal, like "TERM" or "USR1"', "choice": "one of",
    "text": "a text",
    "volume": "a whole path, in which $USER and $GROUP stand for names",
    "reservation": 'a table like { gpus = 4, groups = ["ml101"], start = "Mon,Wed 10:00", duration = "2h" }',
    "start": 'a time, like "2026-11-24T10:00" or "Mon,Wed 10:00"',
    "classes": 'a table like { "1g.10gb" = 2, H100 = { guarantee = 2, limit = 4 } }',
}  # fmt: skip
_MOST = 1_000_000_000
_LONGEST = 1 << 20
"""Bytes of a settings file."""
_ALL_OF_THEM = "the settings are"


@dataclass(frozen=True, slots=True)
class Setting:
    """``key``: section and name with dots; a last ``*`` stands for any name, and the value is a dict of them. ``default`` None: see
    ``about``. ``least``: the smallest that is allowed; ``choices``: all that is allowed, of kind ``choice``; ``pattern``: what a text,
    or each of some names, has to match, ``form``: the same in words."""

    key: str
    kind: Kind
    default: Any
    about: str
    least: int = 0
    choices: tuple[str, ...] = ()
    form: str = ""
    pattern: str = r"[\s\S]*"

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.key.split("."))


GPU_CLASS = "[A-Za-z0-9][A-Za-z0-9 ./_+-]{0,63}"
_DOMAIN = "[A-Za-z0-9][A-Za-z0-9.-]{0,252}"
MAIL_ADDRESS = rf"[A-Za-z0-9_][A-Za-z0-9._+-]{{0,63}}(@{_DOMAIN})?"
QUOTA = (
    Setting("guarantee", "count", None, "GPUs that others may borrow and have to give back; left out: none"),
    Setting("limit", "count", None, "GPUs at once; left out: no limit"),
    Setting("weight", "count", None, "the part of the GPUs where queue.order is fair; left out: 1, for a group none of its own", 1),
    Setting("jobs", "count", None, "jobs that run at once, with or without GPUs; left out: no limit"),
    Setting("cpu_jobs", "count", None, "jobs without GPUs that run at once; left out: no limit"),
    Setting("queued", "count", None, "jobs in the queue, waiting or running; left out: queue.per_user, for a group no limit"),
    Setting(
        "classes", "classes", {}, "GPUs at once of a class: a model, a MIG profile, a kind of gpus.devices, or whole; left out: no limit"
    ),
)
"""What a table of kind ``quota`` may say. A plain number instead of the table is its ``limit``."""

CLASS_QUOTA = (
    Setting("guarantee", "count", None, "GPUs of the class that others may borrow and have to give back; left out: none"),
    Setting("limit", "count", None, "GPUs of the class at once; left out: no limit"),
    Setting("weight", "count", None, "the part where queue.order is fair, for jobs of the class; left out: that of the quota", 1),
)
"""The same of a class in such a table."""

RESERVATION = (
    Setting("gpus", "count", None, "so many whole GPUs are kept", 1),
    Setting("cores", "count", None, "so many cores, beside those that go with GPUs (host.cores_per_gpu)", 1),
    Setting("memory", "size", None, "so much memory, beside that which goes with GPUs", 1),
    Setting("users", "names", (), "for these"),
    Setting("groups", "names", (), "and the members of these"),
    Setting("start", "start", None, "from then on, in the host's time zone: 2026-11-24T10:00, or each week: Mon,Wed 10:00, Mon-Fri 8:30"),
    Setting("duration", "duration", None, "for so long; of what comes each week at most seven days", 60),
)
"""What a table of kind ``reservation`` says: some of gpus, cores and memory, some of users and groups, and all else."""

SETTINGS = (
    Setting("images.max_size", "size", None, "upper bound of the image store; images go by their last use; left out: none"),
    Setting("quota.default", "quota", None, "GPUs at once for each user not named below [quota.users]; left out: no limit"),
    Setting("quota.users.*", "quota", {}, "GPUs at once for this user"),
    Setting("quota.groups.*", "quota", {}, "GPUs at once for all members of this group together"),
    Setting("groups.*", "names", {}, "the members of a group; left out: the system's group of that name"),
    Setting("queue.per_user", "count", 10_000, "jobs that one user may have waiting and running", 1),
    Setting("queue.per_user_size", "size", 64 << 20, "what one user's waiting and running jobs may take; an array counts once", 1),
    Setting("queue.keep_days", "count", 30, "days for which jobs that have ended are remembered"),
    Setting("queue.keep_jobs", "count", 10_000, "jobs that have ended of which one user's are remembered, the newest"),
    Setting("queue.order", "choice", "fifo", "among equals in priority: fifo, or fair: who has had least comes first", 0, ("fifo", "fair")),
    Setting("queue.half_life", "duration", 7 * 86400.0, "seconds after which GPU time counts half as much in a fair order", 60),
    Setting("preempt.after", "duration", 300.0, "seconds that a job has run at least when it gives back GPUs that it borrowed"),
    Setting("preempt.grace", "duration", 30.0, "seconds that such a job has to save its work, once it has got its signal"),
    Setting("preempt.signal", "signal", 0, "the signal that it gets; left out: the stop signal of the job or its image"),
    Setting("host.cpu_jobs", "count", None, "jobs without GPUs at once; left out: two for each processor, 8 at least"),
    Setting("host.cores", "count", None, "cores that jobs may have together; left out: all that the daemon may use", 1),
    Setting("host.memory", "size", None, "memory that jobs may have together; left out: the host's less a sixteenth, 8 GiB at most", 1),
    Setting("host.cores_per_gpu", "count", 0, "cores that nobody has but the job that has the GPU"),
    Setting("host.memory_per_gpu", "size", 0, "the same of memory"),
    Setting("host.cores_per_job", "count", 0, "what a job without GPUs counts for that does not say --cpus"),
    Setting(
        "host.numa",
        "choice",
        "any",
        "where jobs with GPUs run: any; near: on the processors of the GPUs' memory nodes; strict: with those nodes' memory alone",
        0,
        ("any", "near", "strict"),
    ),
    Setting(
        "host.own_cores",
        "choice",
        "no",
        "whether no other user's jobs run on the processors that are set aside for the whole cores of a user's running jobs: no, yes",
        0,
        ("no", "yes"),
    ),
    Setting("host.memory_per_job", "size", 0, "what a job without GPUs counts for that does not say --memory"),
    Setting(
        "gpus.devices",
        "names",
        (),
        "kinds of devices that are leased as GPUs are, by the names of the Container Device Interface: amd.com/gpu",
        form='a list of kinds, like ["amd.com/gpu"]; GPUs of NVIDIA need no name',
        pattern=rf"(?!nvidia\.com/gpu$){device_names.KIND}",
    ),
    Setting(
        "gpus.cdi",
        "names",
        (),
        "directories of the files that describe devices by name; left out: /etc/cdi and /var/run/cdi",
        form="a list of whole paths",
        pattern=r"/[^\0]*",
    ),
    Setting(
        "gpus.beside",
        "names",
        (),
        "what images may ask for with leased GPUs, of drivers that know no leases: gds, gdrcopy, imex",
        form='a list of gds, gdrcopy and imex, like ["gds"]',
        pattern="gds|gdrcopy|imex",
    ),
    Setting("gpus.driver_root", "path", "/", "where the NVIDIA driver is installed, if apart from the host's own files"),
    Setting(
        "gpus.share",
        "choice",
        "no",
        "jobs that ask for some memory of one GPU share it: no, those of one user, or those of all",
        0,
        ("no", "user", "all"),
    ),
    Setting(
        "gpus.mps",
        "choice",
        "no",
        "whether those of one user who share a GPU get NVIDIA's Multi-Process Service, which limits their memory: no, yes",
        0,
        ("no", "yes"),
    ),
    Setting(
        "gpus.idle_after", "duration", 0.0, "jobs that leave all their GPUs unused for so long are ended, after a notice; 0: they are not"
    ),
    Setting("gpus.idle_notice", "duration", 600.0, "how long before its end such a job gets its notice"),
    Setting("reservations.*", "reservation", {}, "hours for which GPUs, cores or memory are kept for some users"),
    Setting(
        "volumes.*",
        "volume",
        {},
        "the directory of the host that every job has there; $USER: the name of its user, $GROUP: of each group of hers",
    ),
    Setting("disk.per_job", "size", 0, "what a job may have written to its image, and without project quotas to its log; 0: any size"),
    Setting("disk.per_user", "size", 0, "the same of all running jobs of a user together"),
    Setting("host.admins", "names", (), "administrators besides root and the daemon's own user"),
    Setting("host.admin_groups", "names", (), "and the members of these groups"),
    Setting(
        "networks.forward",
        "choice",
        "no",
        "whether dockless may have this host forward packets, which networks that lead out need: no, ipv4, both (then no router tells it"
        " its own addresses of IPv6)",
        0,
        ("no", "ipv4", "both"),
    ),
    Setting("notify.sendmail", "path", None, "the program that sends notices of jobs by mail, as /usr/sbin/sendmail; left out: none"),
    Setting(
        "notify.smtp",
        "text",
        None,
        "else the mail server for it; left out: none",
        form="HOST or HOST:PORT",
        pattern=rf"{_DOMAIN}(:[0-9]{{1,5}})?",
    ),
    Setting(
        "notify.sender",
        "text",
        None,
        "whom such mail is from; left out: dockless@ this host",
        form="an address for mail",
        pattern=MAIL_ADDRESS,
    ),
    Setting(
        "notify.domains",
        "names",
        (),
        "domains of the addresses that users may name; the first is that of their own; left out: none",
        form="a list of domains",
        pattern=_DOMAIN,
    ),
    Setting(
        "notify.webhook",
        "text",
        None,
        "where all notices are posted to, as JSON; left out: nowhere",
        form="an http or https address",
        pattern="https?://[!-~]{1,2000}",
    ),
    Setting("logs.keep_days", "count", 30, "days for which the output of ended jobs is kept"),
    Setting("logs.per_user", "size", 4 << 30, "what the kept output of one user's ended jobs may take; the oldest goes first"),
    Setting(
        "logs.size",
        "size",
        128 << 20,
        "how much of a detached sandbox's or a job's output is kept, the newest, where it does not say",
        8192,
    ),
    Setting("logs.size_limit", "size", 1 << 30, "the most that a job may ask for with --log-size", 8192),
)
DEFAULTS: Mapping[str, Any] = {setting.key.removesuffix(".*"): setting.default for setting in SETTINGS}


def load(path: Path | None = None) -> Mapping[str, Any]:
    """The value of every setting by its key (``quota.users`` for ``quota.users.*``); the default where the file says nothing or is not
    there. ``path``: ``paths.config_file()`` if None. ``BadInput`` names file, line, key and, for an unknown key, the nearest one."""
    path = paths.config_file() if path is None else path
    return check(path, text_of(path) or "")


def with_roots(key: str) -> list[Any]:
    """What the caller's settings say, and what root's say where those are others. ``BadInput`` where the caller's are wrong."""
    found = [load()[key]]
    if not os.environ.get("DOCKLESS_HOME") and paths.config_file() != paths.CONFIG_OF_ROOT:
        with contextlib.suppress(DocklessError):  # others' to mend
            found.append(load(paths.CONFIG_OF_ROOT)[key])
    return found


def check(path: Path, text: str) -> Mapping[str, Any]:
    """As ``load`` for a file ``path`` that had this text."""
    values = dict(DEFAULTS)
    found = _Reader(path, text)
    found.table((), _parsed(path, text))
    for key, value in found.values.items():
        values[key] = value
    if "logs.size" not in found.values:
        values["logs.size"] = min(values["logs.size"], values["logs.size_limit"])
    elif values["logs.size"] > values["logs.size_limit"]:
        found.add(found.wrong(("logs", "size"), f"is more than logs.size_limit, {exact_size(values['logs.size_limit'])}"))
    if values["host.own_cores"] == "yes" and values["host.numa"] != "any":
        what = f'is for numa = "any", and host.numa is {values["host.numa"]!r}: both say on which processors jobs run'
        found.add(found.wrong(("host", "own_cores"), what, hint="leave one of them out"))
    found.refuse()
    return values


def check_possible(values: Mapping[str, Any]) -> None:
    """``BadInput`` for settings with which the caller's own daemon does not start, since it takes root's."""
    if os.geteuid() == 0:
        return
    if values["disk.per_job"] or values["disk.per_user"]:
        hint = "leave disk.per_job and disk.per_user out"
        raise BadInput("only root's daemon can measure what jobs write", subject="disk", hint=hint)
    if values["host.own_cores"] == "yes":
        hint = "leave host.own_cores out"
        raise BadInput("only root's daemon has jobs of several users to keep apart", subject="host.own_cores", hint=hint)
    if any(GROUP in source for source in values["volumes"].values()):
        hint = "leave volumes with $GROUP out"
        raise BadInput("only root's daemon can keep the groups of a user in her jobs", subject="volumes", hint=hint)


def text_of(path: Path) -> str | None:
    """The file as text, None where there is none. ``BadInput`` for what is no file of text."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadInput(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}", subject=str(path), hint="make it readable"
        ) from None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _LONGEST:
            raise BadInput(f"{path} is not a file of settings", subject=str(path), hint="write a TOML file there, or remove it")
        data = os.read(fd, _LONGEST)
    finally:
        os.close(fd)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadInput(f"{path}:{line}: this is not UTF-8", subject=str(path), hint="save the file as UTF-8") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        what = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        line = f":{at[1]}" if (at := re.search(r"\(at line ([0-9]+)", what)) else ""
        raise BadInput(f"{path}{line}: this is not TOML: {what}", subject=str(path), hint="correct that line") from None


class _Reader(Findings):
    """Checks a document against ``SETTINGS`` and gathers its values by key, and what is wrong with others."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__()
        self.path = path
        self.text = text
        self.values: dict[str, Any] = {}

    def table(self, at: tuple[str, ...], table: Mapping[str, Any]) -> None:
        for name, value in table.items():
            here = (*at, name)
            setting = _setting(here)
            with self.noted():
                if setting is not None:
                    read = self.value(here, setting, value)
                    if setting.path[-1] == "*":
                        self.values.setdefault(".".join(at), {})[name] = read
                    else:
                        self.values[setting.key] = read
                elif not any(one.path[: len(here)] == here for one in SETTINGS):
                    raise self.unknown(here, value)
                elif isinstance(value, dict):
                    self.table(here, value)
                else:
                    raise self.wrong(here, f"is a section: write [{dotted(here)}]")

    def told(self, error: DocklessError) -> str:
        return str(error) if error.hint.startswith(_ALL_OF_THEM) else super().told(error)

    def value(self, here: tuple[str, ...], setting: Setting, value: Any) -> Any:
        if setting.kind == "size" and isinstance(value, (str, int)) and not isinstance(value, bool):
            try:
                size = parse_size(value)
            except BadInput as error:
                raise self.wrong(here, f"is {value!r}, not {_KINDS['size']}") from error
            if size >= setting.least:
                return size
        if setting.kind == "quota" and isinstance(value, dict):
            return self.record(here, value, QUOTA)
        if setting.kind == "reservation" and isinstance(value, dict):
            return self.reservation(here, setting, value)
        if setting.kind == "start":
            with contextlib.suppress(BadInput):
                return parse(str(value)) and str(value)
        if setting.kind == "classes" and isinstance(value, dict):
            counts = {}
            for name, one in value.items():
                with self.noted():
                    counts[name] = self.of_class((*here, name), setting, one)
            return counts
        if setting.kind == "choice" and value in setting.choices:
            return value
        if setting.kind in ("duration", "signal") and isinstance(value, (str, int, float)) and not isinstance(value, bool):
            with contextlib.suppress(BadInput):
                found = parse_duration(value) if setting.kind == "duration" else parse_signal(str(value))
                if setting.least <= found <= _MOST:
                    return found
        number = isinstance(value, int) and not isinstance(value, bool)
        if number and setting.kind in ("count", "quota") and setting.least <= value <= _MOST:
            return value
        if (
            setting.kind == "names"
            and isinstance(value, list)
            and all(isinstance(item, str) and re.fullmatch(setting.pattern, item) for item in value)
        ):
            return tuple(value)
        if setting.kind == "path" and isinstance(value, str) and value.startswith("/") and "\0" not in value:
            return os.path.normpath(value)
        if setting.kind == "text" and isinstance(value, str) and re.fullmatch(setting.pattern, value):
            return value
        if setting.kind == "volume" and isinstance(value, str):
            return self.volume(here, setting, value)
        shown = _shown(value)
        if setting.kind == "names" and isinstance(value, list):
            shown += f" with {_shown(next(item for item in value if not isinstance(item, str) or not re.fullmatch(setting.pattern, item)))}"
        least = f" from {setting.least}" if setting.kind in ("count", "size") or setting.least else ""
        least += " " + ", ".join(setting.choices) if setting.choices else ""
        raise self.wrong(here, f"is {shown}, not {setting.form or _KINDS[setting.kind]}{least}", setting)

    def reservation(self, here: tuple[str, ...], setting: Setting, value: Mapping[str, Any]) -> dict[str, Any]:
        found = self.record(here, value, RESERVATION)
        if not re.fullmatch(GPU_CLASS, here[-1]):
            raise self.wrong(here, "is no name of a reservation: write letters and digits", setting)
        missing = [name for name in ("start", "duration") if name not in value]
        missing += ["gpus, cores or memory"] if not {"gpus", "cores", "memory"}.intersection(value) else []
        missing += ["users or groups"] if not (value.get("users") or value.get("groups")) else []
        if missing:
            raise self.wrong(here, f"does not say {', '.join(missing)}", setting)
        every = parse(found["start"]).every if "start" in found else 0.0
        if every and found.get("duration", 0.0) > every:
            raise self.wrong((*here, "duration"), f"is more than {format_duration(every)}, after which it begins again", RESERVATION[-1])
        return found

    def of_class(self, here: tuple[str, ...], setting: Setting, value: Any) -> int | dict[str, Any]:
        """The limit, or the table, of the class that is the last word of ``here``."""
        if not re.fullmatch(GPU_CLASS, here[-1]):
            raise self.wrong(here, "is no class of GPUs", setting)
        if isinstance(value, dict):
            return self.record(here, value, CLASS_QUOTA)
        return int(self.value(here, Setting(dotted(here), "quota", None, setting.about), value))

    def volume(self, here: tuple[str, ...], setting: Setting, value: str) -> str:
        """The host's path; the last word of ``here`` is where a job has it."""
        target = here[-1]
        if not _is_template(target):
            raise self.wrong(here, f"cannot be the place of a volume, which is {_KINDS['volume']}", setting)
        if paths.is_the_sandboxs(target):
            raise self.wrong(here, f"cannot be the place of a volume: {paths.SANDBOXS_OWN} are the sandbox's own", setting)
        if not _is_template(value):
            raise self.wrong(here, f"is {_shown(value)}, not {_KINDS['volume']}", setting)
        if (GROUP in value) != (GROUP in target):
            raise self.wrong(here, f"is {_shown(value)}: $GROUP stands on both sides or on none", setting)
        if USER in value.partition(GROUP)[0] and GROUP in value:
            raise self.wrong(here, f"is {_shown(value)}: $USER cannot come before $GROUP", setting)
        return value

    def record(self, here: tuple[str, ...], value: Mapping[str, Any], fields: tuple[Setting, ...]) -> dict[str, Any]:
        """A table in which only ``fields`` may stand."""
        known = {field.key: field for field in fields}
        found = dict[str, Any]()
        for name, one in value.items():
            with self.noted():
                if name not in known:
                    raise self.unknown((*here, name), one, known)
                found[name] = self.value((*here, name), known[name], one)
        limit = found.get("limit")
        if limit is not None and found.get("guarantee", 0) > limit:
            raise self.wrong((*here, "guarantee"), f"is more than the limit, {limit}", known["guarantee"])
        for name, of in found.get("classes", {}).items():
            if limit is not None and isinstance(of, dict) and of.get("guarantee", 0) > limit:
                raise self.wrong((*here, "classes", name, "guarantee"), f"is more than the limit, {limit}", CLASS_QUOTA[0])
        return found

    def wrong(self, here: tuple[str, ...], what: str, setting: Setting | None = None, hint: str = "") -> BadInput:
        """``hint``: the next step, where that is not what the setting is about."""
        key = dotted(here)
        setting = setting or _setting(here)
        hint = hint or (f"{key}: {setting.about}" if setting is not None else f"{_ALL_OF_THEM} {_known()}")
        return BadInput(f"{self.path}:{line_of(self.text, here)}: {key} {what}", subject=key, hint=hint)

    def unknown(self, here: tuple[str, ...], value: Any, fields: Iterable[str] = ()) -> BadInput:
        """``fields``: what may stand there instead, if that is a table of its own."""
        key = dotted(here)
        section = isinstance(value, dict) and not fields
        what = f"there is no section [{key}]" if section else f"there is no setting {key}"
        near = nearest(here[-1], fields) if fields else _nearest_key(here, section=section)
        hint = f"did you mean {near}?" if near else f"{_ALL_OF_THEM} {', '.join(fields) or _known()}"
        return BadInput(f"{self.path}:{line_of(self.text, here)}: {what}", subject=key, hint=hint)


def _is_template(path: str) -> bool:
    """Whether ``path`` is whole, normal, and has no other ``$`` than those of ``USER`` and ``GROUP``."""
    plain = re.sub(r"\$(USER|GROUP)(?!\w)", "x", path)
    return plain[:1] == "/" and plain == os.path.normpath(plain) != "/" and not set(plain) & set("$\0")


def _setting(here: tuple[str, ...]) -> Setting | None:
    for setting in SETTINGS:
        if setting.path == here or (setting.path[-1] == "*" and len(setting.path) == len(here) and setting.path[:-1] == here[:-1]):
            return setting
    return None


def dotted(here: tuple[str, ...]) -> str:
    """The key as the file would have it: what is no bare key in quotes."""
    return ".".join(name if name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name) else repr(name) for name in here)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "a list" if isinstance(value, list) else "a section" if isinstance(value, dict) else repr(value)[:60]


def _known() -> str:
    return ", ".join(setting.key for setting in SETTINGS)


def _nearest_key(here: tuple[str, ...], *, section: bool) -> str:
    known = {".".join(setting.path[:-1]) for setting in SETTINGS} if section else {setting.key for setting in SETTINGS}
    near = nearest(".".join(here), known)
    return f"[{near}]" if section and near else near


def nearest(name: str, known: Iterable[str], likeness: float = 0.5) -> str:
    """The one of ``known`` that ``name`` may be a slip of, empty for none. ``likeness``: from 0, any, to 1, the same."""
    import difflib

    return next(iter(difflib.get_close_matches(name, sorted(known), 1, likeness)), "")


def line_of(text: str, here: tuple[str, ...]) -> int:
    """The line on which a key of a sound document is written, or what it is in."""
    lines = lines_of(text)
    return next((lines[here[:end]] for end in range(len(here), 0, -1) if here[:end] in lines), 1)
