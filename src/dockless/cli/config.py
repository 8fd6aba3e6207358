"""``config``: the settings in ``dockless.toml``."""

from __future__ import annotations

from dockless.base.records import plain
from dockless.base.typing import Any
from dockless.cli.output import out, print_json, table
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput


def config_options(parser: Parser) -> None:
    parser.usage = "dockless config check|show [FILE]"
    parser.add_argument("action", choices=("check", "show"), help="check: whether it can be read; show: every setting, and what it is")
    parser.add_argument("file", nargs="?", metavar="FILE", help="instead of the one that is in use")
    parser.json()


def config(options: Namespace) -> int:
    """1 for a file whose users or groups this host does not know, of whose classes it has no GPU, or whose directory of the driver it does
    not have; ``BadInput`` for one that cannot be read, and for the caller's own if a daemon would not start with it."""
    from dockless.base import paths, settings, settings_told
    from dockless.base.path import Path

    path = Path(options.file) if options.file else paths.config_file()
    if options.file and not path.exists():
        raise BadInput(
            f"{path} is not there", subject=str(path), hint="dockless config check, without a file, reads the one that is in use"
        )
    values = settings.load(path)
    if options.action == "check" and (not options.file or _in_use(path)):
        from dockless.sched.engine.reading import startable

        startable(path)
    if options.action == "show":
        return _show(values, options.json)
    from dockless.sandbox.gpus.host_classes import has_class

    unknown = settings_told.without_effect(path) + settings_told.unknown_classes(has_class(values["gpus.devices"]), path)
    return _check(path, settings_told.missing_driver(path), unknown, _disk(values), options.json)


def _in_use(path: Any) -> bool:
    """Whether it is the caller's own file, by whatever name. Others she may look at, too: root's, say."""
    import os

    from dockless.base import paths

    try:
        return os.path.samefile(path, paths.config_file())
    except OSError:
        return False


def _disk(values: Any) -> str:
    """Who holds the limits of what jobs write, if there are some."""
    import os

    if not (values["disk.per_job"] or values["disk.per_user"]) or os.geteuid() != 0:
        return ""
    from dockless.base import paths
    from dockless.sandbox.run import project

    why = project.lacking(paths.state())
    return f"[disk] is measured: {why}." if why else "[disk] is enforced by the kernel, with project quotas."


def _check(path: Any, missing: list[str], unknown: list[str], disk: str, as_json: bool) -> int:
    if as_json:
        print_json({"file": str(path), "there": path.exists(), "unknown": missing + unknown, **({"disk": disk} if disk else {})})
    elif missing or unknown:
        out(*unknown, *(["What is said of these has no effect."] if unknown else []), *missing)
    else:
        out(f"{path} is right." if path.exists() else f"{path} is not there: the defaults hold.")
    if disk and not as_json:
        out(disk)
    return 1 if missing or unknown else 0


def _show(values: Any, as_json: bool) -> int:
    from dockless.base.settings import SETTINGS

    rows = [(setting, values[setting.key.removesuffix(".*")]) for setting in SETTINGS]
    if as_json:
        print_json(plain([{"key": one.key, "value": value, "default": one.default, "about": one.about} for one, value in rows]))
    else:
        table(("SETTING", "VALUE", "ABOUT"), [(setting.key, _text(value, setting.kind), setting.about) for setting, value in rows])
    return 0


def _text(value: Any, kind: str) -> str:
    from dockless.base.units import format_duration, format_size

    if value is None:
        return "-"
    if hasattr(value, "items"):
        return ", ".join(f"{name} {_in_one(one, kind)}" for name, one in value.items()) or "-"
    if isinstance(value, (tuple, list)):
        return " ".join(value) or "-"
    if kind == "duration":
        return format_duration(value)
    return format_size(value) if kind == "size" else str(value)


def _in_one(value: Any, kind: str) -> str:
    return f"({_text(value, kind)})" if hasattr(value, "items") else _text(value, kind)
