"""``#SBATCH`` lines of a shell script, sbatch(1). The script goes along as it is, in its own interpreter.

Those lines count that stand before the first command. ``--container-image``, ``--container-mounts`` and ``--container-workdir`` are
pyxis's; without them the script runs in the host's own system, read-only. Its arguments, ``$1`` and on, are those behind ``--``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dockless.base.later import re
from dockless.base.text import shown
from dockless.base.typing import Any
from dockless.base.units import parse_signal
from dockless.errors import BadInput
from dockless.sched.formats.jobfile import JobFile, Role
from dockless.sched.formats.tables import Path, Source

_SHORT = {
    "A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error",
    "G": "gpus", "H": "hold", "i": "input", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "n": "ntasks", "o": "output",
    "p": "partition", "Q": "quiet", "q": "qos", "S": "core-spec", "s": "oversubscribe", "t": "time", "v": "verbose", "W": "wait",
    "w": "nodelist", "x": "exclude", "k": "no-kill", "O": "overcommit", "F": "nodefile", "m": "distribution", "B": "extra-node-info",
}  # fmt: skip
_SWITCHES = ("hold", "requeue", "no-requeue", "quiet", "verbose", "wait", "no-kill", "overcommit", "spread-job", "parsable", "test-only")
_MAY_HAVE_A_VALUE = ("exclusive", "oversubscribe", "nice", "get-user-env", "propagate")
_ONE_HOST = "there is one host"
_NO_EFFECT = {
    **dict.fromkeys(("partition", "qos", "account", "wckey"), "who may have how many GPUs is said in dockless.toml"),
    **dict.fromkeys(("constraint", "nodelist", "exclude", "contiguous", "switches", "distribution", "clusters", "no-kill", "overcommit",
                     "spread-job", "core-spec", "thread-spec", "nodefile", "extra-node-info", "ntasks-per-core", "threads-per-core",
                     "hint", "gpu-bind", "mem-bind", "cpu-freq", "gres-flags", "gpu-freq", "exclusive", "oversubscribe"), _ONE_HOST),
    **dict.fromkeys(("output", "error", "open-mode"), "its output is kept for it: dockless logs JOB"),
    "input": "there is nothing to read",
    "reservation": "hours that are reserved for you or your group are yours without a word",
    **dict.fromkeys(("comment", "quiet", "verbose", "parsable", "propagate", "get-user-env", "time-min", "profile", "tmp", "power",
                     "ignore-pbs", "kill-on-invalid-dep", "delay-boot", "reboot"), "it has no effect"),
}  # fmt: skip
_REFUSED = {
    "wait": "submit it with --wait",
    "test-only": "dockless convert FILE shows what would be submitted",
    "licenses": "there are no licenses; leave it out",
    "deadline": "leave it out, or say --time",
    "uid": "a job is its submitter's",
    "gid": "a job is its submitter's; give -u in a job file of dockless's own form",
    "container": "give an image: --container-image",
    "bb": "there is no burst buffer; leave it out",
    "bbf": "there is no burst buffer; leave it out",
}
_KNOWN = (
    "job-name", "time", "gres", "gpus", "gpus-per-node", "gpus-per-task", "cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu",
    "mem-per-gpu", "array", "dependency", "begin", "hold", "requeue", "no-requeue", "signal", "nodes", "ntasks", "ntasks-per-node",
    "chdir", "export", "priority", "nice", "mail-type", "mail-user", "container-image", "container-mounts", "container-workdir",
)  # fmt: skip
_GPUS = r"(?:([A-Za-z0-9_.-]{1,64}):)?([0-9]{1,4})"
_TIMES = (
    (r"([0-9]{1,6})-([0-9]{1,3}):([0-9]{1,3}):([0-9]{1,3})", (86400, 3600, 60, 1)),
    (r"([0-9]{1,6})-([0-9]{1,3}):([0-9]{1,3})", (86400, 3600, 60)),
    (r"([0-9]{1,6})-([0-9]{1,3})", (86400, 3600)),
    (r"([0-9]{1,6}):([0-9]{1,3}):([0-9]{1,3})", (3600, 60, 1)),
    (r"([0-9]{1,9}):([0-9]{1,3})", (60, 1)),
    (r"([0-9]{1,9})", (60,)),
)  # minutes where there is one number, hours behind days
_MAIL = {
    "BEGIN": ("start",), "END": ("end",), "FAIL": ("fail",), "REQUEUE": ("preempt",), "NONE": (),
    "ALL": ("start", "end", "fail", "preempt"), "INVALID_DEPEND": ("fail",),
}  # fmt: skip
_NO_MAIL = ("STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS")
_LONGEST_ARGUMENT = 128 * 1024 - 1
"""Bytes of one argument, MAX_ARG_STRLEN of execve(2)."""
_LONGEST_LINE = 4096
_MOST_LINES = 200
_NO_COMMENT = r"""(?:'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^'"\\#])*"""
_ARRAY = r"([0-9]{1,6})(?:-([0-9]{1,6})(?::([0-9]{1,6}))?)?(?:%([0-9]{1,6}))?"


class _Options:
    """What the lines say: of each option its last value, and the line."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.values: dict[str, str] = {}
        self.lines: dict[Path, int] = {}
        source.find_lines = lambda: self.lines

    def wrong(self, name: str, why: str, hint: str) -> None:
        self.source.wrong((f"--{name}",), why, hint)

    def note(self, name: str, why: str) -> None:
        self.source.note((f"--{name}",), why)

    def take(self, words: Sequence[str], line: int) -> None:
        """The words of one line."""
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word[:2] == "--":
                name, equals, value = word[2:].partition("=")
            elif len(word) > 1 and word[0] == "-" and word[1] in _SHORT:
                name, equals, value = _SHORT[word[1]], word[2:3] and "=", word[2:].removeprefix("=")
            else:
                what = self.source.what
                self.source.add(BadInput(f"{what}:{line}: {shown(word)} is no option", subject=what, hint="write --name=value"))
                continue
            if name not in (*_KNOWN, *_NO_EFFECT, *_REFUSED):
                import difflib

                near = difflib.get_close_matches(name, (*_KNOWN, *_NO_EFFECT), 1, 0.6)
                hint = f"did you mean --{near[0]}?" if near else "leave it out; known are " + ", ".join(f"--{one}" for one in _KNOWN)
                self.lines[(f"--{name}",)] = line
                self.wrong(name, "is unknown", hint)
                if not equals and rest and rest[0][:1] != "-":
                    rest.pop(0)  # its value
                continue
            if not equals and name not in _SWITCHES and (name not in _MAY_HAVE_A_VALUE or (rest and rest[0][:1] != "-")):
                self.lines[(f"--{name}",)] = line
                if not rest:
                    self.wrong(name, "has no value", f"write --{name}=VALUE")
                    return
                value = rest.pop(0)
            self.values[name], self.lines[(f"--{name}",)] = value, line

    def like(self, name: str, pattern: str, hint: str) -> Any:
        """The match of its value, None where it is not said."""
        if name not in self.values:
            return None
        match = re.fullmatch(pattern, self.values[name])
        if match is None:
            self.wrong(name, f"{shown(self.values[name])} cannot be read", hint)
        return match


def parse(text: str, source: Source, arguments: Sequence[str] = ()) -> JobFile:
    """``arguments``: of the script. ``BadInput``"""
    lines = text.split("\n")
    if lines[0][:2] != "#!":
        raise BadInput(f"{source.what}:1: there is no interpreter", subject=source.what, hint="begin the script with #!/bin/sh")
    interpreter = lines[0][2:].split()
    if not interpreter:
        raise BadInput(f"{source.what}:1: there is no interpreter behind #!", subject=source.what, hint="write #!/bin/sh")
    said = _read(lines, source)
    for name, hint in _REFUSED.items():
        if name in said.values:
            said.wrong(name, "is not possible here", hint)
    for name, why in _NO_EFFECT.items():
        if name in said.values:
            said.note(name, why)
    _one_task(said)
    options: dict[str, Any] = {}
    env = _environment(said)
    gpus, gpu_class = _gpus(said)
    _limits(said, options, gpus, env)
    queue, indices = _queue(said)
    if "container-mounts" in said.values:
        options["mounts"] = [one for one in said.values["container-mounts"].split(",") if one]
    workdir = said.values.get("container-workdir") or said.values.get("chdir")
    if workdir:
        options["workdir"] = workdir
    if gpus:
        env["SLURM_GPUS"] = gpus
    if gpu_class:
        options["gpu_class"] = gpu_class
    name = said.values.get("job-name", "")
    if name:
        env["SLURM_JOB_NAME"] = name
    if env:
        options["env"] = env
    image = said.values.get("container-image", "host").replace("#", "/")  # enroot's REGISTRY#IMAGE
    shell = re.fullmatch(r"(/bin/|/usr/bin/env +|/usr/bin/)?(ba|da|z|k)?sh", " ".join(interpreter))
    if shell:
        text = "\n".join((_prelude(indices), *lines[1:]))
    if len(text.encode()) > _LONGEST_ARGUMENT:
        if not shell:
            hint = f"save it as a file, and start that: {interpreter[-1].rpartition('/')[2]} FILE"
            raise BadInput(f"{source.what} has more than {_LONGEST_ARGUMENT} bytes", subject=source.what, hint=hint)
        command = (*interpreter, "-c", *_short_enough(text, source.what), *arguments)
    else:
        command = (*interpreter, "-c", text, *([source.what, *arguments] if arguments else []))
    return JobFile("sbatch", name, (Role("main", 1, image, command, gpus, options),), queue, {}, tuple(source.notes), source=source)


def _short_enough(text: str, name: str) -> list[str]:
    """The arguments of ``sh -c`` that run a script which is too long for one of them: the shell puts its parts together."""
    size = _LONGEST_ARGUMENT // 4  # a character has up to four bytes
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    joined = "".join(f"${{{number}}}" for number in range(1, len(parts) + 1))
    return [f'script="{joined}"; shift {len(parts)}; eval "$script"', name, *parts]


def _prelude(indices: tuple[int, int] | None) -> str:
    """Slurm's names for what dockless tells a job, in the place of the first line: those that follow keep their numbers."""
    pairs = ["SLURM_JOB_ID=$DOCKLESS_JOB_ID", "SLURM_JOBID=$DOCKLESS_JOB_ID"]
    if indices is not None:
        first, step = indices
        pairs += ["SLURM_ARRAY_JOB_ID=$DOCKLESS_ARRAY_ID", f"SLURM_ARRAY_TASK_ID=$(({first} + {step} * DOCKLESS_ARRAY_INDEX))"]
    return f"export {' '.join(pairs)}"


def _read(lines: Sequence[str], source: Source) -> _Options:
    import shlex

    said = _Options(source)
    found = 0
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if line and line[0] != "#":
            break
        if line[:7] != "#SBATCH" or line[7:8] not in ("", " ", "\t"):
            continue
        found += 1
        if len(line) > _LONGEST_LINE or found > _MOST_LINES:
            what = (
                f"is longer than {_LONGEST_LINE} characters" if found <= _MOST_LINES else f"is one of more than {_MOST_LINES} #SBATCH lines"
            )
            raise BadInput(f"{source.what}:{number}: the line {what}", subject=source.what, hint="give fewer options")
        try:
            words = shlex.split(_without_comment(line[7:], f"{source.what}:{number}", source))
        except ValueError:
            source.add(BadInput(f"{source.what}:{number}: a quote does not end", subject=source.what, hint="end it"))
            continue
        said.take(words, number)
    return said


def _without_comment(text: str, place: str, source: Source) -> str:
    """The options of a line. As for sbatch they end at a ``#`` that is neither quoted nor escaped, also within a word: then with a note."""
    match = re.match(_NO_COMMENT, text)
    end = match.end() if match is not None else 0
    if text[end : end + 1] != "#":
        return text
    if not text[end - 1 : end].isspace():
        why = "the line ends there, as it does for sbatch: write it in quotes where it belongs to the value"
        source.notes.append(f"{place}: {shown(text[:end].split()[-1] + '#')}: {why}")
    return text[:end]


def _one_task(said: _Options) -> None:
    for name in ("nodes", "ntasks", "ntasks-per-node"):
        match = said.like(name, r"([0-9]{1,6})(?:-([0-9]{1,6}))?", "give a number")
        if match is not None and match[1] not in ("1", "0" if name == "nodes" else "1"):
            hint = "leave it out, and start the tasks in the script" if name != "nodes" else "there is one host: leave it out"
            said.wrong(name, f"is {said.values[name][:20]}, and a script has one task on one host", hint)


def _gpus(said: _Options) -> tuple[str, str]:
    """How many, and of which class; "" for none."""
    found: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for name in ("gpus", "gpus-per-node", "gpus-per-task"):
        if (match := said.like(name, _GPUS, "write --gpus=2")) is not None:
            found[name] = int(match[2])
            kinds |= {_class(match[1]): name}
    for one in filter(None, said.values.get("gres", "").split(",")):
        kind, _, rest = one.partition(":")
        match = re.fullmatch(_GPUS, rest or "1")
        if kind.removeprefix("gres/") == "gpu" and rest and match is None and re.fullmatch("[A-Za-z][A-Za-z0-9_.-]{0,63}", rest):
            match = re.fullmatch(_GPUS, f"{rest}:1")
        if kind.removeprefix("gres/") != "gpu" or match is None:
            said.wrong("gres", f"{shown(one)} cannot be read", "GPUs are what there is: --gres=gpu:2")
            continue
        found["gres"] = found.get("gres", 0) + int(match[2])
        kinds |= {_class(match[1]): "gres"}
    if len(set(found.values())) > 1:
        said.wrong(list(found)[1], f"and --{next(iter(found))} do not agree", "give one of them")
    kinds.pop("", None)
    if len(kinds) > 1:
        first, second = list(kinds)[:2]
        said.wrong(kinds[second], f"asks for GPUs of {first} and of {second}", "the GPUs of a job are of one class")
    count = str(next(iter(found.values()), 0) or "")
    return count, next(iter(kinds), "") if count else ""


def _class(kind: str | None) -> str:
    """A type of GPUs as we call it: a model, or the MIG profile behind one, of ``a100_1g.5gb``."""
    name = (kind or "").lstrip("_.-")
    profile = re.search(r"(?:\A|_)([0-9]g\.[0-9]{1,4}gb)\Z", name)
    return profile[1] if profile else name


def _limits(said: _Options, options: dict[str, Any], gpus: str, env: dict[str, str]) -> None:
    cores = 0
    for name, each in (("cpus-per-task", 1), ("cpus-per-gpu", int(gpus or 0))):
        match = said.like(name, "[0-9]{1,6}", "give a number of processors")
        if match is not None and int(match[0]) * each:
            cores = int(match[0]) * each
            env["SLURM_CPUS_PER_TASK"] = str(cores)
    if cores:
        options["cpus"] = cores
    of: tuple[tuple[str, int], ...] = (("mem", 1), ("mem-per-cpu", cores or 1), ("mem-per-gpu", int(gpus or 0)))
    for name, each in of:
        match = said.like(name, "([0-9]{1,12})([KMGTkmgt]?)B?", "give MiB, or a number with K, M, G or T")
        if match is not None and int(match[1]) * each:  # 0: all memory of the host
            options["memory"] = f"{int(match[1]) * each}{(match[2] or 'M').upper()}"


def _environment(said: _Options) -> dict[str, str]:
    found = {}
    for one in filter(None, said.values.get("export", "NONE").split(",")):
        name, equals, value = one.partition("=")
        if equals and name:
            found[name] = value
        elif name not in ("NONE", "NIL"):
            which, instead = ("", "NAME=VALUE for each variable") if name == "ALL" else (f"{name[:40]} of ", f"{name[:40]}=VALUE")
            said.note("export", f"{which}the caller's environment is not taken along: write {instead}")
    return found


def _queue(said: _Options) -> tuple[dict[str, Any], tuple[int, int] | None]:
    found: dict[str, Any] = {}
    indices = None
    if "time" in said.values:
        found["time_limit"] = _seconds(said)
    if (match := said.like("array", _ARRAY, "write a range: 0-15, 1-10:2, with %4 for at most four at once")) is not None:
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or not step:
            said.wrong("array", f"{said.values['array'][:40]} has no member", "write a range: 0-15")
        elif match[4] and not int(match[4]):
            said.wrong("array", f"{said.values['array'][:40]} lets none of its jobs run", "write a limit of 1 or more: 0-15%4")
        count = (last - first) // (step or 1) + 1
        found["array"] = f"{count}%{match[4]}" if match[4] else count
        indices = first, step
    for option, key in (("dependency", "after"), ("begin", "begin"), ("signal", "warn")):
        if option in said.values:
            read: Callable[[_Options], str] = {"dependency": _dependency, "begin": _begin, "signal": _signal}[option]
            found[key] = read(said)
    if "hold" in said.values:
        found["hold"] = True
    if events := _mail(said):
        found["notify"] = events
        if "mail-user" in said.values:
            found["notify_to"] = said.values["mail-user"]
    if "requeue" in said.values and "no-requeue" not in said.values:
        found["on_reboot"] = "requeue"
    for name, sign in (("priority", 1), ("nice", -1)):
        if (match := said.like(name, "(-?[0-9]{1,9})?", "give a whole number")) is not None:
            found["priority"] = sign * int(match[1] or 100)
    return found, indices


def _seconds(said: _Options) -> int:
    text = said.values["time"]
    if text.upper() in ("INFINITE", "UNLIMITED", "-1"):
        return 0
    for pattern, units in _TIMES:
        match = re.fullmatch(pattern, text)
        if match is not None:
            return sum(int(part) * unit for part, unit in zip(match.groups(), units, strict=True))
    said.wrong("time", f"{shown(text)} cannot be read", "write minutes, H:M:S or D-H:M:S")
    return 0


def _dependency(said: _Options) -> str:
    text = said.values["dependency"]
    if not re.fullmatch(r"(?:(?:after(?:any|ok|notok)(?::[0-9]{1,18})+|singleton)(?:,(?!\Z)|\Z))+", text):
        said.wrong("dependency", f"{shown(text)} cannot be read", "write afterok:12:13, afterany:12, afternotok:12 or singleton")
    return text


def _mail(said: _Options) -> str:
    """The events that are told, as ``notify`` has them."""
    found = dict[str, None]()
    for word in filter(None, said.values.get("mail-type", "").upper().split(",")):
        if word in _NO_MAIL:
            said.note("mail-type", f"{word} has no effect")
        elif word not in _MAIL:
            said.wrong("mail-type", f"{shown(word)} is unknown", f"write some of {', '.join(_MAIL)}")
        else:
            found |= dict.fromkeys(_MAIL[word])
    return ",".join(found)


def _begin(said: _Options) -> str:
    text = said.values["begin"]
    match = re.fullmatch(r"now(?:\+([0-9]{1,9})(seconds?|minutes?|hours?|days?|weeks?)?)?", text)
    if match is None:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?)?", text):
            said.wrong("begin", f"{shown(text)} cannot be read", "write now+2hours, or 2026-11-24T08:00")
            return ""
        return _moment(said, text)
    unit = {"m": 60, "h": 3600, "d": 86400, "w": 604800}.get((match[2] or "s")[0], 1)
    return f"+{int(match[1] or 0) * unit}s"


def _moment(said: _Options, text: str) -> str:
    """A time of this host's own zone, with the zone."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError, OSError):
        said.wrong("begin", f"{shown(text)} is no time", "write now+2hours, or 2026-11-24T08:00")
        return ""


def _signal(said: _Options) -> str:
    text = said.values["signal"]
    match = re.fullmatch(r"(?:[BR]{1,2}:)?([A-Za-z0-9]{1,12})(?:@([0-9]{1,6}))?", text)
    if match is None:
        said.wrong("signal", f"{shown(text)} cannot be read", "write TERM@120")
        return ""
    try:
        parse_signal(match[1])
    except BadInput as error:
        said.wrong("signal", str(error), error.hint)
    return f"{match[1]}@{match[2] or 60}"
