"""What the store knows of an image: its history, everything about it, and which images a word fits."""

from __future__ import annotations

import json

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any
from dockless.errors import BadInput
from dockless.images.catalog.catalog import LAYER_FILE, Catalog
from dockless.images.catalog.image import Image
from dockless.images.model import digest, manifest, platforms
from dockless.images.model.config import ConfigDocument
from dockless.images.model.digest import Digest
from dockless.images.model.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a history, as its image tells it. ``size``: bytes of the files in its layer; ``stored``: of its blob. ``digest``: of the
    blob, empty for a step that made no layer."""

    created: str
    created_by: str
    comment: str
    author: str
    empty: bool
    size: int = 0
    stored: int = 0
    digest: str = ""


def history(store: Catalog, image: Image | str) -> list[Step]:
    """The steps that made ``image``, the newest first. An image whose history does not fit its layers is told by its layers."""
    found = _get(store, image)
    raw, parsed, _, sizes = _documents(store, found)
    layers = [{"size": size, "stored": layer.size, "digest": str(layer.digest)} for layer, size in zip(parsed.layers, sizes, strict=True)]
    steps = raw.get("history")
    entries = [entry for entry in steps if isinstance(entry, dict)] if isinstance(steps, list) else []
    if sum(1 for entry in entries if not entry.get("empty_layer")) != len(layers):
        entries = [{} for _ in layers]
    steps = []
    at = 0
    for entry in entries:
        text = {key: value if isinstance(value := entry.get(key), str) else "" for key in ("created", "created_by", "comment", "author")}
        empty = bool(entry.get("empty_layer"))
        steps.append(Step(**text, empty=empty, **({} if empty else layers[at])))  # type: ignore[arg-type]
        at += not empty
    return steps[::-1]


def inspect(store: Catalog, image: Image | str) -> dict[str, Any]:
    """Everything about ``image`` as plain data, ready for JSON."""
    found = _get(store, image)
    raw, parsed, document, sizes = _documents(store, found)
    manifest_raw = store.read_blob(digest.parse(found.digest), found.name)
    config = found.config
    return {
        "reference": found.reference,
        "tags": _tags(store, found.digest),
        "digest": found.digest,
        "config_digest": found.config_digest,
        "created": found.created,
        "author": raw["author"] if isinstance(raw.get("author"), str) else "",
        "os": found.os,
        "architecture": found.architecture,
        "variant": found.variant,
        "runs_here": platforms.rank(found.platform, platforms.host()) is not None,
        "size": found.size,
        "stored": len(manifest_raw) + parsed.config.size + sum({layer.digest: layer.size for layer in parsed.layers}.values()),
        "config": {
            "env": [f"{name}={value}" for name, value in config.env],
            "entrypoint": list(config.entrypoint),
            "cmd": list(config.cmd),
            "working_dir": config.working_dir,
            "user": config.user,
            "volumes": list(config.volumes),
            "stop_signal": config.stop_signal,
            "labels": dict(config.labels),
        },
        "layers": [
            {
                "digest": str(layer.digest),
                "diff_id": str(diff_id),
                "chain_id": str(chain_id),
                "media_type": layer.media_type,
                "stored": layer.size,
                "size": size,
                "kept": store.has_blob(layer.digest),
                "form": None if (form := store.layer(chain_id, diff_id)) is None else "index" if form.tar is not None else "directory",
            }
            for layer, diff_id, chain_id, size in zip(parsed.layers, document.diff_ids, digest.chain(document.diff_ids), sizes, strict=True)
        ],
        "warnings": list(found.warnings),
        "manifest": json.loads(manifest_raw),
        "configuration": raw,
    }


def search(store: Catalog, text: str) -> list[Image]:
    """The images of this store that ``text`` is a part of: of their names, their labels' keys and values. Upper and lower case are the
    same; of several words all must fit. Best first: those whose name begins so."""
    words = text.casefold().split()
    if not words:
        raise BadInput("nothing to search for", subject="search", hint="give a part of a name or of a label")
    hits: list[tuple[bool, str, Image]] = []
    for image in store.list():
        name = (image.reference or "").casefold()
        places = [name, *(part.casefold() for label in image.config.labels for part in (*label, "=".join(label)))]
        if all(any(word in place for place in places) for word in words):
            last = name.rpartition("/")[2]
            hits.append((not last.startswith(words[0]), name, image))
    return [image for _, _, image in sorted(hits, key=lambda hit: hit[:2])]


def _get(store: Catalog, image: Image | str) -> Image:
    found = store.get(image) if isinstance(image, str) else image
    if found.is_host:
        raise BadInput("the host is no image of the store", subject=found.name, hint="'dockless images' lists those")
    return found


def _tags(store: Catalog, name: str) -> list[str]:
    return sorted(tag for tag, target in store.read_index()["tags"].items() if target == name)


def _documents(store: Catalog, image: Image) -> tuple[dict[str, Any], Manifest, ConfigDocument, list[int]]:
    """The configuration as it came, the parsed documents, and what each layer unpacks to."""
    _, parsed, document = store.documents(image.digest, f"image {image.name}")
    raw = manifest.load_json(store.read_blob(parsed.config.digest, f"image {image.name}"), f"image {image.name}")
    return raw, parsed, document, [_unpacked(store, chain_id) for chain_id in digest.chain(document.diff_ids)]


def _unpacked(store: Catalog, chain_id: Digest) -> int:
    try:
        return int(json.loads((store.layer_path(chain_id) / LAYER_FILE).read_bytes())["size"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
