"""One case carried out: its image loaded, its sandboxes run to their end, everything removed; what was said, changed and left."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from hunt import build, canaries, own_mounts
from hunt.canaries import Canaries
from hunt.cases import Case
from support import make_image
from support.boxes import log_paths

import dockless
from dockless import DEVNULL, PIPE, STDOUT
from dockless import _gpus as gpus
from dockless import _life as life
from dockless._options import make_spec
from dockless.base.healthcheck import HealthCheck
from dockless.errors import BadInput, DocklessError
from dockless.images import Store
from dockless.sandbox.run import detached
from dockless.sandbox.run import foreground as sandbox
from dockless.sandbox.run.health import health_of
from dockless.sandbox.run.removal import remove_tree
from dockless.sandbox.spec import Spec

LIMIT = 15.0  # seconds that a sandbox may take: its own timeout ends it
REFERENCE = "hunt/case:latest"
_KINDS = {"link": make_image.symlink, "white": make_image.whiteout, "opaque": make_image.opaque, "node": make_image.device}


def perform(case: Case, on: Canaries, id: str) -> dict[str, Any]:
    """The record of a case: ``out`` what its programs said, ``error`` how dockless refused, ``crash`` how it broke, ``changes``, ``left``,
    and in ``tries`` the same of each of its starts."""
    case = _filled(case, str(on.base))
    record: dict[str, Any] = {"out": "", "error": "", "crash": "", "changes": [], "left": [], "tries": []}
    canaries.loosen(on)
    with _told(record):
        image = _image(case, on)
        before, here = canaries.picture(on), canaries.traces(id)
        try:
            with _told(record):
                _DEEDS[case["kind"]](case, on, image, id, record)
        finally:
            _volumes_gone(on)
            record["left"] = canaries.left(here, id)
            record["changes"] = canaries.differences(before, canaries.picture(on))
    return record


@contextlib.contextmanager
def _told(record: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except DocklessError as error:
        record["error"] = f"{type(error).__name__}: {error}"
    except Exception:
        record["crash"] = traceback.format_exc()


def _filled(value: Any, base: str) -> Any:
    if isinstance(value, str):
        return value.replace("{base}", base)
    if isinstance(value, list):
        return [_filled(item, base) for item in value]
    return {key: _filled(item, base) for key, item in value.items()} if isinstance(value, dict) else value


# -- images ----------------------------------------------------------------------------------------------------------------------------


def _settings(case: Case) -> list[tuple[str, str]]:
    tries = [one.get("options", {}) for one in case.get("tries", [case])]
    flags = list(case.get("flags", ()))
    if all(options.get("profile") == "privileged" for options in tries):
        flags.append("mild")
    targets = {mount.split(":")[1] for options in tries for mount in options.get("mounts", ())} - {"/mnt"}
    return [("f", name) for name in flags] + [("m", target) for target in sorted(targets)]


def _image(case: Case, on: Canaries) -> str:
    programs = on.base / "programs"
    for name, settings in (("probe", _settings(case)), ("patient", [("f", "wait"), ("f", "mild")]), ("again", [])):
        (programs / name).write_bytes(on.probe(*settings))
        (programs / name).chmod(0o755)
    image = case["image"]
    if image["form"] == "host":
        return "host"
    probe = on.probe(*_settings(case))
    layers = [[_entry(entry, probe) for entry in layer] for layer in image["layers"]]
    config = {"Env": [], "Cmd": [], **image["config"]}
    layout = on.base / "work/layout"
    shutil.rmtree(layout, ignore_errors=True)
    make_image.make_oci_layout(layout, layers, config, REFERENCE, compression="none")
    Store(index=None if image["form"] == "indexed" else False).load(layout)
    return REFERENCE


def _entry(entry: list[Any], probe: bytes) -> make_image.Entry:
    kind, name, *rest = entry
    if kind == "file":
        text, mode, uid, gid = rest
        if text == "<probe>":
            content = probe
        elif text.startswith("<interpreter>"):
            content = build.with_interpreter(text.removeprefix("<interpreter>"))
        else:
            content = text.encode()
        return make_image.file(name, content, mode, uid=uid, gid=gid)
    if kind == "dir":
        mode, uid, gid = rest
        return make_image.directory(name, mode, uid=uid, gid=gid)
    return _KINDS[kind](name, *rest)


# -- deeds -----------------------------------------------------------------------------------------------------------------------------


def _spec(case: Case, image: str, **more: Any) -> tuple[Spec, Any]:
    options = {"timeout": LIMIT, "best_effort": True, "grace": 0.2, **case.get("options", {}), **more}
    wanted = options.pop("gpus", None)
    if "health" in options:
        options["health"] = HealthCheck(**options["health"])
    return make_spec(image, case.get("args", ()), **options), wanted


def _run(case: Case, on: Canaries, image: str, id: str, record: dict[str, Any]) -> None:
    for number, one in enumerate(case["tries"]):
        told: dict[str, Any] = {"out": "", "error": "", "crash": "", "log": 0}
        with _told(told):
            spec, wanted = _spec(one, image)
            if wanted:
                with gpus.lease(wanted) as lease:
                    spec = replace(spec, gpus=lease.uuids)
            if one.get("detached"):
                _detached(one, on, spec, f"{id}-{number}", told)
            else:
                told["out"] = _foreground(spec, f"{id}-{number}", tty=one.get("tty", False))
        record["tries"].append(told)


def _foreground(spec: Spec, id: str, *, tty: bool = False, meanwhile: Callable[[Callable[[], str]], None] | None = None) -> str:
    """Its output. ``meanwhile``: called while it runs, with a function that gives the output so far."""
    outer, inner = pty.openpty() if tty else (-1, -1)
    with open(os.memfd_create("hunt"), "w+b") as out:
        stdin = inner if tty else os.open(os.devnull, os.O_RDONLY)
        try:
            with sandbox.ForegroundSandbox(spec, id=id, stdin=stdin, stdout=out.fileno(), stderr=out.fileno()) as box:
                if meanwhile is not None:
                    meanwhile(lambda: os.pread(out.fileno(), 1 << 20, 0).decode(errors="replace"))
                box.wait(2 * LIMIT)
        finally:
            os.close(stdin)
            if tty:
                os.close(outer)
            _output[:] = [os.pread(out.fileno(), 1 << 24, 0).decode(errors="replace")]
    return _output[0]


_output = [""]


def _detached(case: Case, on: Canaries, spec: Spec, id: str, record: dict[str, Any]) -> None:
    box = detached.start(spec, id=id)
    try:
        try:
            for step in case.get("meanwhile", ()):
                with _told(record):
                    _MEANWHILE[step](box, on, record)
            box.wait(2 * LIMIT)
        finally:
            _said(box, record)
        for step in case.get("after", ()):
            with _told(record):
                _AFTER[step](box, on, record)
    finally:
        box.remove()


def _said(box: detached.Box, record: dict[str, Any]) -> None:
    """What its program wrote, and its last check of health."""
    record["out"] += "".join(path.read_text(errors="replace") for path in log_paths(box))
    record["log"] = sum(path.stat().st_size for path in log_paths(box))
    checked = health_of(box)
    record["out"] += checked.output if checked is not None else ""


def _exec(box: detached.Box, on: Canaries, record: dict[str, Any]) -> None:
    """The program enters the sandbox in which it runs already."""
    program = "/mnt/probe" if box.spec.image == "host" else "/bin/probe"
    with dockless.Sandbox.of(box) as handle, handle.spawn(program, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, timeout=LIMIT) as command:
        record["out"] += command.communicate()[0].decode(errors="replace")


def _terminal(box: detached.Box, on: Canaries, record: dict[str, Any]) -> None:
    program = "/mnt/probe" if box.spec.image == "host" else "/bin/probe"
    with dockless.Sandbox.of(box) as handle, handle.spawn(program, tty=True, timeout=LIMIT) as command:
        record["out"] += command.communicate()[0].decode(errors="replace")


def _files(box: detached.Box, on: Canaries, record: dict[str, Any]) -> None:
    """Files go in and out by paths that the image, or the program meanwhile, has made links of."""
    with tempfile.TemporaryDirectory(dir=on.base / "work") as out, dockless.Sandbox.of(box) as handle:
        for number, name in enumerate(("/link0", "/chain0", "/data", "/v", "/v0", "/tmp", "/etc", "/home")):
            with contextlib.suppress(OSError):
                handle.files.copy_out(name, f"{out}/{number}", max_size="4M", max_files=200)
            with contextlib.suppress(OSError):
                handle.files.write_text(f"{name}/hunted", "HUNT-")
        found = subprocess.run(["grep", "-rhoaE", "HUNT-CANARY-[0-9a-f]+", out], capture_output=True, text=True, errors="replace")
        record["out"] += found.stdout


def _tars(box: detached.Box, on: Canaries, record: dict[str, Any]) -> None:
    """The same with tars: what one sandbox gave goes back to where the links are."""
    with dockless.Sandbox.of(box) as handle:
        for name in ("/link0", "/chain0", "/data", "/v", "/tmp", "/etc", "/odd"):
            tar = io.BytesIO()
            with contextlib.suppress(OSError):
                handle.files.tar_out(name, tar, max_size="4M", max_files=200)
            record["out"] += "".join(re.findall("HUNT-CANARY-[0-9a-f]+", tar.getvalue().decode(errors="replace")))
            tar.seek(0)
            with contextlib.suppress(OSError, BadInput):  # one that has no end is none
                handle.files.tar_in(tar, name, max_size="4M", max_files=200)


def _events(box: detached.Box, on: Canaries, record: dict[str, Any]) -> None:
    with dockless.events(since=0.0, until=time.time(), ids=box.id) as events:
        record["out"] += "".join(f"{event}\n" for event in events)


def _restart(box: detached.Box, on: Canaries, record: dict[str, Any]) -> None:
    life.restart(box)
    try:
        _exec(box, on, record)
        box.wait(2 * LIMIT)
    finally:
        _said(box, record)


def _commit(box: detached.Box, on: Canaries, record: dict[str, Any]) -> None:
    image = dockless.commit(box, "hunt/committed:latest", created=0)
    try:
        _export(box, on, record)
    finally:
        Store().remove(image.name or "hunt/committed:latest", force=True)


def _export(box: detached.Box, on: Canaries, record: dict[str, Any]) -> None:
    from dockless.sandbox.commit import changes_of

    target = on.base / "work/export.tar"
    changes_of(box).export(target)
    content = target.read_bytes()
    for token, place in on.tokens.items():
        if token.encode() in content:
            raise AssertionError(f"an export holds {place}: {token}")


_Step = Callable[[detached.Box, Canaries, dict[str, Any]], None]
_MEANWHILE: dict[str, _Step] = {"exec": _exec, "terminal": _terminal, "files": _files, "tars": _tars, "events": _events}
_AFTER: dict[str, _Step] = {
    "diff": lambda box, on, record: [str(change) for change in dockless.diff(box)] and None,
    "commit": _commit,
    "export": _export,
    "files": _files,
    "tars": _tars,
    "events": _events,
    "restart": _restart,
}


def _race(case: Case, on: Canaries, image: str, id: str, record: dict[str, Any]) -> None:
    flipper = make_spec(image, ["flip", "/v", f"directory {case['link']}", "4", "900"], timeout=LIMIT, best_effort=True, **case["flips"])
    spec, _ = _spec(case, image)

    def start(output: Callable[[], str]) -> None:
        end = time.monotonic() + 0.8
        number = 0
        while time.monotonic() < end:
            number += 1
            with _told(record):
                record["out"] += _foreground(spec, f"{id}-{number}")

    record["out"] += _foreground(flipper, id, meanwhile=start)


def _owner(case: Case, on: Canaries, image: str, id: str, record: dict[str, Any]) -> None:
    """As the daemon does it: root starts, for somebody who owns what lies below her own names."""
    uid = pwd.getpwnam(os.environ.get("HUNT_OWNER") or "nobody").pw_uid
    spec, _ = _spec(case, image)
    volumes = on.home / "state/volumes" / str(uid)
    probe = on.base / "programs/probe"
    with _told(record):
        detached.start(_spec({**case, "options": {"mounts": ["first:/v"]}}, image)[0], id=f"{id}-0", owner=uid).remove()
    flipper = subprocess.Popen(
        [probe, "flip", volumes, case["target"], str(len(case["options"]["mounts"])), "1500"],
        user=uid,
        group=uid,
        extra_groups=[],
        stdout=subprocess.PIPE,
    )
    try:
        number = 0
        while flipper.poll() is None:
            number += 1
            with _told(record):
                box = detached.start(spec, id=f"{id}-{number}", owner=uid)
                box.remove()
    finally:
        flipper.kill()
        flipper.communicate()


def _replace(case: Case, on: Canaries, image: str, id: str, record: dict[str, Any]) -> None:
    spec, _ = _spec(case, image)

    def replaced(output: Callable[[], str]) -> None:
        end = time.monotonic() + 5
        while '"waiting"' not in output() and time.monotonic() < end:
            time.sleep(0.005)
        for place in own_mounts.SECRETS:
            own_mounts.put_secret(place, canaries.token_of(on, place))

    record["out"] += _foreground(spec, id, meanwhile=replaced)


def _volumes_gone(on: Canaries) -> None:
    for place in (on.home / "state/volumes").glob("*/*"):
        if place.name != canaries.NEIGHBOUR:
            if place.is_symlink() or not place.is_dir():
                place.unlink(missing_ok=True)
            else:
                remove_tree(place)


_DEEDS: dict[str, Callable[[Case, Canaries, str, str, dict[str, Any]], None]] = {
    "run": _run,
    "race": _race,
    "owner": _owner,
    "replace": _replace,
}


# -- a process of its own --------------------------------------------------------------------------------------------------------------


def attempt(case: Case, on: Canaries, id: str, patience: float) -> dict[str, Any]:
    """``perform`` in a child: what breaks or hangs there is in the record."""
    target = on.base / "work/record.json"
    target.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            log = os.open(on.base / "work/child.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1), os.dup2(log, 2)
            target.write_text(json.dumps(perform(case, on, id)))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    hung = not _ended(pid, patience)
    if target.exists() and not hung:
        return json.loads(target.read_text())
    text = (on.base / "work/child.log").read_text(errors="replace")[-3000:]
    return {
        "out": "",
        "error": "",
        "crash": "" if hung else text or "the child ended without a word",
        "hung": hung,
        "changes": [],
        "left": [],
        "tries": [],
    }


def _ended(pid: int, patience: float) -> bool:
    fd = os.pidfd_open(pid)
    try:
        import select

        if select.select([fd], [], [], patience)[0]:
            return True
        os.kill(pid, 9)
        return False
    finally:
        os.close(fd)
        os.waitpid(pid, 0)
