"""What the store has: ``images``, ``images check``, ``search``, ``tag``, ``rmi``."""

from __future__ import annotations

import sys

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import format_size
from dockless.cli.filters import filter_option, filters, labels
from dockless.cli.output import age, each, err, out, print_json, short, status, table, warn
from dockless.cli.parser import Namespace, Parser
from dockless.cli.template import format_option, show
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.images import Image
    from dockless.images.catalog.disk_usage import ImageUsage, ImageUse


def images_options(parser: Parser) -> None:
    parser.usage = "dockless images [options] [PATTERN …]\n       dockless images check [--repair] [options]"
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="only names that match: busybox, '*/library/*', 'python:3.*'")
    parser.add_argument("--shared", action="store_true", help="those of root's store: run takes them from there, without a network")
    filter_option(parser, "dangling=true|false (without a name), reference=PATTERN, label=NAME[=VALUE]", "-f")
    format_option(parser)
    parser.add_argument("--repair", action="store_true", help="with check: remove what is damaged, make again what can be made again")
    parser.quiet("references alone; with check: problems alone")
    parser.json()


def images(options: Namespace) -> int:
    from dockless.images import Store

    if options.patterns[:1] == ["check"]:
        if len(options.patterns) > 1:
            raise BadInput("check looks at the whole store, not at one image", subject=options.patterns[1], hint="dockless images check")
        return _check(options)
    wanted = filters(options.filter, {key: key for key in _FILTERS}, {"dangling": ("true", "false")})
    if options.repair:
        raise BadInput("--repair without check", subject="--repair", hint="dockless images check --repair")
    if options.shared:
        if options.filter or options.format:
            raise BadInput("--shared takes neither --filter nor --format", subject="--shared", hint="take what is wanted from --json")
        return _shared(options)
    store = Store()
    usable, unusable = store.listed()
    if left_out := len(unusable):
        what = "1 image is" if left_out == 1 else f"{left_out} images are"
        warn(
            f"{what} left out: damaged, or of a form that this version refuses", hint="dockless images check says why; dockless rmi removes"
        )
    found = [image for image in usable if matches(image.reference, image.digest, options.patterns) and _fits(image, wanted)]
    if options.quiet:
        for image in found:
            out(image.name)
        return 0
    if options.json or options.format:
        usage = {one.digest: one for one in store.disk_usage().images}
        if options.json:
            print_json([record(image, usage.get(image.digest)) for image in found])
        else:
            show(options.format, [_in_words(image, usage.get(image.digest)) for image in found])
        return 0
    rows, uses = [], store.last_uses()
    for image in found:
        last_used, in_use = uses.get(image.digest, (0.0, False))
        used = "in use" if in_use else f"{age(last_used)} ago" if last_used else ""
        platform = f"{image.os}/{image.architecture}"
        rows.append((image.reference or "<none>", short(image.digest), platform, format_size(image.size), image.created[:10], used))
    table(("IMAGE", "ID", "PLATFORM", "SIZE", "CREATED", "USED"), rows)
    return 0


_FILTERS = ("dangling", "reference", "label")


def _fits(image: Image, wanted: dict[str, list[str]]) -> bool:
    from dockless.sandbox.filters import has_labels

    return (
        ("dangling" not in wanted or str(image.reference is None).lower() in wanted["dangling"])
        and matches(image.reference, image.digest, wanted.get("reference", []))
        and ("label" not in wanted or has_labels(dict(image.config.labels), labels(wanted["label"])))
    )


def _in_words(image: Image, usage: ImageUsage | None) -> dict[str, Any]:
    """With what Docker's templates name beside the fields of --json."""
    from dockless.images.model.reference import parse

    named = None if image.reference is None else parse(image.reference)
    repository, tag = ("<none>", "<none>") if named is None else (named.familiar.rpartition(":")[0], named.tag or "<none>")
    names = {"repository": repository, "tag": tag, "id": short(image.digest), "labels": dict(image.config.labels)}
    return record(image, usage) | names | {"created_at": image.created}


def _shared(options: Namespace) -> int:
    """The names in root's store, whose list everybody may read; its layers nobody but root."""
    from dockless.base import paths
    from dockless.images import Store
    from dockless.images.files import explained

    store = Store(paths.shared_store())
    with explained(f"cannot read the image store {store.root}", str(store.root), "root keeps its store to itself here"):
        index = store.read_index()
    rows = [
        {"reference": name, "digest": digest, "size": int(index["images"].get(digest, {}).get("size", 0))}
        for name, digest in sorted(index["tags"].items())
        if matches(name, digest, options.patterns)
    ]
    if options.quiet:
        for row in rows:
            out(row["reference"])
    elif options.json:
        print_json(rows)
    else:
        table(("IMAGE", "ID", "SIZE"), [(row["reference"], short(row["digest"]), format_size(row["size"])) for row in rows])
    return 0


def matches(name: str | None, digest: str, patterns: list[str]) -> bool:
    """Whether one of the patterns is an image's name, in any of the forms people write, or its repository."""
    if not patterns:
        return True
    if name is None:
        return any(pattern in ("<none>", digest) for pattern in patterns)
    from fnmatch import fnmatchcase

    from dockless.images.model.reference import parse

    parsed = parse(name)
    familiar = parsed.familiar
    forms = (name, parsed.name, familiar, familiar.rpartition(":")[0])
    return any(fnmatchcase(form, pattern) for pattern in patterns for form in forms)


def record(image: Image, usage: ImageUsage | ImageUse | None = None) -> dict[str, Any]:
    """One image for scripts. ``size``: of its files; ``disk_usage``: what it takes in the store, ``unique_size``: alone."""
    return {
        "reference": image.reference,
        "digest": image.digest,
        "config_digest": image.config_digest,
        "os": image.os,
        "architecture": image.architecture,
        "variant": image.variant,
        "size": image.size,
        "created": image.created,
        "layers": len(image.layers),
        "warnings": image.warnings,
        "config": image.config,
        **({} if usage is None else {"disk_usage": usage.size, "last_used": usage.last_used, "in_use": usage.in_use}),
        **({"unique_size": usage.own} if usage is not None and hasattr(usage, "own") else {}),
    }


def print_images(found: list[Image], options: Namespace) -> None:
    """What a verb has made or brought: one line each, the name alone with -q; nothing with --json, which prints them together."""
    for image in found:
        for warning in () if options.quiet else image.warnings:
            warn(f"{image.name}: {warning}")
        if options.quiet:
            out(image.name)
        elif not options.json:
            layers = "1 layer" if len(image.layers) == 1 else f"{len(image.layers)} layers"
            out(f"{image.name}  {short(image.digest)}  {format_size(image.size)}, {layers}")


def _check(options: Namespace) -> int:
    from dockless.images import Store

    store = Store()
    shown = sys.stderr.isatty() and not options.quiet and not options.json
    tell = (lambda path: status(path[:100])) if shown else None
    report = store.check(repair=options.repair, tell=tell)
    if shown:
        status("")
    if options.json:
        print_json(
            {"sound": report.sound, "images": report.images, "layers": report.parts, "size": report.size, "problems": report.problems}
        )
        return 0 if report.sound else 1
    for problem in report.problems:
        out(f"{problem.path}: {problem.why}{' (repaired)' if problem.repaired else ''}")
        for image in problem.images:
            out(f"    part of image {short(image)}")
    if not options.quiet:
        read = f"{report.images} images, {report.parts} parts, {format_size(report.size)} read"
        out(f"{store.root} is sound: {read}" if report.sound else f"{store.root} is not sound: {read}")
        if not report.sound:
            warn("not sound", hint="dockless images check --repair")
    return 0 if report.sound else 1


def search_options(parser: Parser) -> None:
    parser.add_argument("text", metavar="TEXT", help="in names, labels, environment and commands, whatever the case")
    parser.add_argument("--local", action="store_true", help="in this store (the only place that is searched: registries have no search)")
    parser.quiet("references alone")
    parser.json()


def search(options: Namespace) -> int:
    from dockless.images import Store

    if not options.local:
        raise BadInput(
            "the registries' protocol has no search", subject="--local", hint=f"search the store: dockless search --local {options.text}"
        )
    hits = [(image, where) for image in Store().list() if (where := _found(image, options.text.casefold()))]
    if options.json:
        print_json([record(image) | {"found": where} for image, where in hits])
    elif options.quiet:
        for image, _ in hits:
            out(image.name)
    else:
        table(("IMAGE", "ID", "FOUND"), [(image.reference or "<none>", short(image.digest), where[0][:100]) for image, where in hits])
    return 0 if hits else 1


def _found(image: Image, text: str) -> list[str]:
    config = image.config
    places = [("name", image.name), ("digest", image.digest)]
    places += [(f"label {name}", value) for name, value in config.labels]
    places += [(f"env {name}", value) for name, value in config.env]
    places += [("entrypoint", " ".join(config.entrypoint)), ("command", " ".join(config.cmd))]
    return [f"{where}: {value}" if where != "name" else where for where, value in places if text in f"{where}: {value}".casefold()]


def tag_options(parser: Parser) -> None:
    parser.add_argument("image", metavar="IMAGE", help="a name, a digest, or the beginning of an id")
    parser.add_argument("names", nargs="+", metavar="NAME[:TAG]", help="further names; a name that another image has moves")
    parser.quiet("say nothing")
    parser.json()


def tag(options: Namespace) -> int:
    from dockless.images import Store

    store = Store()
    for name in options.names:
        store.check_name(name)  # all of them, or none
    full = [store.tag(options.image, name) for name in options.names]
    if options.json:
        print_json({"digest": store.get(options.image).digest, "tags": full})
    elif not options.quiet:
        out(*full)
    return 0


def rmi_options(parser: Parser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="a name takes that name away, the last one the image too")
    parser.add_argument("-f", "--force", action="store_true", help="all names of an id; and though a sandbox uses it")
    parser.quiet("say nothing")
    parser.json()


def rmi(options: Namespace) -> int:
    from dockless.images import Store

    store = Store()
    removed: list[dict[str, Any]] = []

    def one(name: str) -> None:
        freed = store.remove(name, force=options.force)
        removed.append({"removed": freed.images, "freed": freed.size, "busy": freed.busy})
        if not options.quiet and not options.json:
            for gone in freed.images:
                out(gone)

    code = each(options.images, one, as_json=options.json)
    if options.json:
        print_json(removed)
    elif not options.quiet and removed:
        say_freed(sum(entry["freed"] for entry in removed), any(entry["busy"] for entry in removed))
    return code


def say_freed(size: int, busy: bool, would: str = "freed") -> None:
    if size or not busy:
        err(f"{format_size(size)} {would}")
    if busy:
        warn("a pull or load is at work, so the rest has to stay for now: dockless prune later")
