"""What is in an image: ``inspect`` and ``history``."""

from __future__ import annotations

from dockless.base import paths
from dockless.base.typing import Any
from dockless.base.units import format_size
from dockless.cli.output import cut, out, print_json, raw, short, table
from dockless.cli.parser import Namespace, Parser
from dockless.cli.template import format_option, inspected, show
from dockless.errors import BadInput, SandboxGone, UnknownImage
from dockless.sandbox.names import job_of


def inspect_options(parser: Parser) -> None:
    parser.add_argument("names", nargs="+", metavar="IMAGE|SANDBOX", help="images of the store, or detached sandboxes")
    parser.add_argument("--type", choices=("image", "sandbox"), help="where a name could be both: images go first")
    format_option(parser, "-f")
    parser.add_argument("--raw", choices=("manifest", "config"), help="the document itself (one image), byte for byte but on a terminal")
    parser.json()


def inspect(options: Namespace) -> int:
    if options.raw:
        return _raw(options)
    return inspected(options, lambda name: _about(name, options.type))


def _about(name: str, kind: str | None) -> dict[str, Any]:
    from dockless._life import described
    from dockless.sandbox.names import is_job
    from dockless.sandbox.run.box import get

    paths.store()  # without a home directory nothing can be looked up: that is the error then, not an unknown name
    if kind != "sandbox":
        try:
            return about_image(name)
        except (UnknownImage, BadInput):
            if kind == "image":
                raise
    try:
        if (row := described(get(name))) is not None:
            return row
    except (BadInput, SandboxGone):
        if kind == "sandbox" or is_job(name):
            raise
    raise neither(name)


def neither(name: str) -> UnknownImage:
    """The error of a name that is neither an image's nor a sandbox's."""
    hint = "list them: dockless images, dockless ps --all"
    return UnknownImage(f"there is neither an image nor a sandbox {name!r}", subject=name, hint=hint)


def about_image(name: str) -> dict[str, Any]:
    """Everything that the store knows about an image. ``UnknownImage``"""
    from dockless.cli.images import record
    from dockless.images import Store
    from dockless.images.model import digest

    store = Store()
    image = store.get(name)
    if image.is_host:
        return record(image)
    raw, parsed, document = store.documents(image.digest, f"image {image.name}")
    use = store.use(image)
    layers = [
        {
            "digest": str(entry.digest),
            "media_type": entry.media_type,
            "size": entry.size,
            "diff_id": str(diff_id),
            "chain_id": str(chain_id),
            "form": "indexed" if layer.tar is not None else "written",
            "path": str(layer.path),
            "blob_kept": store.has_blob(entry.digest),
        }
        for entry, diff_id, chain_id, layer in zip(
            parsed.layers, document.diff_ids, digest.chain(document.diff_ids), image.layers, strict=True
        )
    ]
    entry = store.read_index()["images"].get(image.digest, {})
    return record(image, use) | {
        "tags": list(use.tags) if use is not None else [],
        "layers": layers,
        "history": history_of(store.read_blob(parsed.config.digest, image.name)),
        "origins": entry.get("origins", []),
        "manifest_size": len(raw),
    }


def history_of(config: bytes) -> list[dict[str, Any]]:
    """The steps that a configuration tells of, oldest first; what is no step is left out."""
    import json

    entries = json.loads(config).get("history")
    if not isinstance(entries, list):
        return []
    names = ("created", "created_by", "author", "comment")
    return [
        {name: entry[name] for name in names if isinstance(entry.get(name), str)} | {"empty_layer": entry.get("empty_layer") is True}
        for entry in entries
        if isinstance(entry, dict)
    ]


def _raw(options: Namespace) -> int:
    from dockless.images import Store

    if len(options.names) > 1:
        raise BadInput("--raw with several images", subject="--raw", hint="one at a time")
    store = Store()
    image = store.get(options.names[0])
    if image.is_host:
        raise BadInput("the host is no image with documents", subject="host", hint="name an image of 'dockless images'")
    manifest, parsed, _ = store.documents(image.digest, f"image {image.name}")
    raw(manifest if options.raw == "manifest" else store.read_blob(parsed.config.digest, image.name))
    return 0


def history_options(parser: Parser) -> None:
    parser.add_argument("image", metavar="IMAGE", help="an image of the store")
    parser.add_argument("--no-trunc", action="store_true", help="the whole commands")
    format_option(parser)
    parser.quiet("the layers' digests alone, newest first")
    parser.json()


def history(options: Namespace) -> int:
    """Newest first, as docker has it."""
    try:
        about = about_image(options.image)
    except UnknownImage as error:
        if job_of(options.image) is not None:
            error.hint = f"dockless queue {options.image} tells of job {options.image}; dockless queue --all lists those that have ended"
        raise
    if "history" not in about:
        raise BadInput("the host is no image with a history", subject=options.image, hint="name an image of 'dockless images'")
    layers = iter(about["layers"])
    steps = about["history"] or [{"created_by": "", "empty_layer": False} for _ in about["layers"]]
    rows = []
    for step in steps:
        layer = None if step.get("empty_layer") else next(layers, None)
        rows.append(step | {"layer": layer and layer["digest"], "size": layer["size"] if layer else 0})
    rows.reverse()
    if options.json:
        print_json(rows)
    elif options.format:
        show(options.format, [{"created": "", "created_by": "", "comment": "", "author": ""} | row for row in rows])
    elif options.quiet:
        for row in rows:
            if row["layer"]:
                out(row["layer"])
    else:
        table(
            ("LAYER", "CREATED", "SIZE", "MADE BY"),
            [
                (
                    short(row["layer"]) if row["layer"] else "",
                    row.get("created", "")[:10],
                    format_size(row["size"]) if row["layer"] else "",
                    _by(row, 10_000 if options.no_trunc else 90),
                )
                for row in rows
            ],
        )
    return 0


def _by(row: dict[str, Any], width: int) -> str:
    text = " ".join(row.get("created_by", "").removeprefix("/bin/sh -c #(nop) ").split())
    comment = row.get("comment", "")
    return cut(f"{text}  # {comment}" if comment else text, width)
