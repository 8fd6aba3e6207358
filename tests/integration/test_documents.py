"""Every block of code in README.md and docs/ is run, as it stands but for the stated substitutions; one that cannot be says why:
``<!-- not run: reason -->`` in the line above it.

A document's blocks run in order, those of a shell in one directory and one home, those of Python in one process, against a registry on this
machine that holds the images they name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import make_image as make
from support.registries import docker_registry
from support.requires import requires

from dockless.images import Store
from dockless.images.registry import Configuration, Credentials
from dockless.images.transfer.push import push

TREE = Path(__file__).resolve().parents[2]
DOCUMENTS = [path for path in (TREE / "README.md", *sorted(TREE.glob("docs/**/*.md"))) if path.exists()]
NOT_CODE = ("text", "json", "toml", "ini", "c")

PYTHON = """#!/bin/sh
echo "python $*"
"""
PIP = """#!/bin/sh
echo "installing $*"; echo made > /usr/numpy
"""

SUBSTITUTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "README.md": (
        ("--memory 4G --cpus 1.5 --gpus 1 IMAGE", "--best-effort --memory 4G --cpus 1.5 --gpus 1 python:3.12"),  # hosts without cgroup v2
        ("dockless doctor ", "dockless doctor || [ $? = 1 ] "),  # it ends with 1 where something is missing
        ("dockless daemon &", "dockless daemon & daemon=$!; until dockless queue > /dev/null 2>&1; do kill -0 $daemon; done"),
        (
            "dockless submit --gpus 2 --time 2h IMAGE -- python train.py",
            "ID=$(dockless submit -q --gpus 2 --time 2h python:3.12 -- python)",
        ),
        (
            "why ID; dockless logs -f ID; dockless wait ID; dockless cancel ID",
            "why $ID; dockless logs -f $ID; dockless wait $ID; dockless cancel $(dockless submit -q -- sleep 99)",
        ),
        ("dockless login registry.example;", "echo secret | dockless login -u me --password-stdin $REGISTRY;"),
    ),
    "docs/labs/what-is-in-an-image.md": (
        ("DIGEST_OF_THE_MANIFEST", "$(grep -o 'sha256:[0-9a-f]*' index.json | head -1 | cut -d: -f2)"),
        ("sha256:CHAIN_ID_BELOW sha256:DIFF_ID", "sha256:0 sha256:0"),
        ("dockless images check\n", "dockless images check || [ $? = 1 ]\n"),  # it has just been broken
        ("dockless save lab:1 -o /tmp/lab.tar\n", "dockless save lab:1 -o lab.tar || [ $? = 125 ]\n"),
        ("dockless images check --repair;", "dockless images check --repair || [ $? = 1 ];"),
    ),
}
"""What stands for a value that the reader fills in, a host that has more than this one, or an exit code that is meant."""


@dataclass(frozen=True)
class Block:
    language: str
    line: int
    text: str
    reason: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document. ``reason``: why it is not run, from the line above it."""
    found: list[Block] = []
    lines = text.split("\n")
    index = 0
    while index < len(lines):
        fence = re.match(r"( *)```(\S*)", lines[index])
        if fence is None:
            index += 1
            continue
        end = next(i for i in range(index + 1, len(lines)) if lines[i].strip() == "```")
        said = re.fullmatch(r"<!-- not run: (.+) -->", lines[index - 1].strip() if index else "")
        found.append(Block(fence[2], index + 1, "\n".join(lines[index + 1 : end]) + "\n", said[1] if said else ""))
        index = end + 1
    return found


def _of(path: Path) -> list[Block]:
    return blocks(path.read_text())


def _run_here(path: Path, language: str) -> list[Block]:
    return [block for block in _of(path) if block.language == language and not block.reason]


def _name(path: Path) -> str:
    return str(path.relative_to(TREE))


def test_blocks_are_found():
    text = "a\n```sh\nb\n\n```\n<!-- not run: needs d -->\n```python\nc\n```\n```text\n```\n"
    assert [(b.language, b.line, b.text, b.reason) for b in blocks(text)] == [
        ("sh", 2, "b\n\n", ""), ("python", 7, "c\n", "needs d"), ("text", 10, "\n", "")
    ]  # fmt: skip


def test_every_block_is_run_or_says_why_not():
    unknown = [
        f"{_name(path)}:{b.line}: {b.language!r}" for path in DOCUMENTS for b in _of(path) if b.language not in (*NOT_CODE, "sh", "python")
    ]
    assert unknown == [], "a block says what it is: sh, python, or " + ", ".join(NOT_CODE)
    assert sum(len(_run_here(path, "sh")) + len(_run_here(path, "python")) for path in DOCUMENTS) >= 10
    for path in DOCUMENTS:
        for block in _of(path):
            if block.reason:
                print(f"not run: {_name(path)}:{block.line}: {block.reason}")


def test_every_substitution_is_used():
    for name, pairs in SUBSTITUTIONS.items():
        text = "".join(block.text for block in _of(TREE / name))
        assert [before for before, _ in pairs if before not in text] == [], name


@pytest.fixture
def place(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the files that the documents name, and the registries that they name on this machine."""
    work = tmp_path / "work"
    work.mkdir()
    base = [*make.rootfs_entries(), make.directory("etc/network"), make.file("etc/group", "root:x:0:\n"), make.directory("home")]
    tools = [make.file(f"usr/bin/{name}", text, 0o755) for name, text in (("python", PYTHON), ("pip", PIP))]
    with docker_registry(tmp_path) as registry:
        conf = tmp_path / "registries.conf"
        entries = "".join(
            f'[[registry]]\nprefix = "{name}"\nlocation = "{registry.netloc}"\ninsecure = true\n'
            for name in ("docker.io", "registry.example")
        )
        conf.write_text(f'unqualified-search-registries = ["docker.io"]\n{entries}')
        for name, value in (
            ("CONTAINERS_REGISTRIES_CONF", str(conf)),
            ("REGISTRY", registry.netloc),
            ("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json")),
            ("DOCKLESS_SIMULATED_GPUS", "4x80G"),
            ("HOME", str(work)),
            ("PATH", f"{_command(tmp_path)}:{os.environ['PATH']}"),
        ):
            monkeypatch.setenv(name, value)
        for name, layers in (("busybox:latest", [base]), ("python:3.12", [base, tools])):
            layout = make.make_oci_layout(tmp_path / name.replace(":", "-"), layers, make.config(cmd=["sh"]), name, compression="gzip")
            store = Store(tmp_path / "other-store")
            store.load(layout)
            push(store, name, f"{registry.netloc}/library/{name}", configuration=Configuration(), credentials=Credentials())
        make.make_oci_layout(work / "image.tar", [base], make.config(), "mine:loaded")
        with tarfile.open(work / "root.tar.gz", "w:gz") as archive:
            archive.add(work / "image.tar", "file")
        yield work


def _command(tmp_path: Path) -> Path:
    """A directory with ``dockless`` as the reader has it installed."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "dockless").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m dockless "$@"\n')
    (place / "dockless").chmod(0o755)
    (place / "python3").symlink_to(sys.executable)
    return place


ELSEWHERE = ("docs/labs/a-packet.md",)
"""Run by a test of its own: test_packet_lab.py."""
SHELL = [path for path in DOCUMENTS if _run_here(path, "sh") and _name(path) not in ELSEWHERE]


@requires("userns", "overlay", "program:docker-registry")
@pytest.mark.parametrize("path", SHELL, ids=map(_name, SHELL))
def test_the_shell_blocks(path, place):
    text = "".join(f": {_name(path)}:{block.line}\n{block.text}" for block in _run_here(path, "sh"))
    for before, after in SUBSTITUTIONS.get(_name(path), ()):
        text = text.replace(before, after)
    script = f"set -eu\ntrap '[ -z \"${{daemon-}}\" ] || {{ kill $daemon; wait $daemon || :; }} 2> /dev/null' EXIT\n{text}"
    ended = subprocess.run(["bash", "-xc", script], cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"


PYTHONS = [path for path in DOCUMENTS if _run_here(path, "python")]


@requires("userns", "overlay", "program:docker-registry")
@pytest.mark.parametrize("path", PYTHONS, ids=map(_name, PYTHONS))
def test_the_python_blocks(path, place):
    text = "".join("\n" * 2 + block.text for block in _run_here(path, "python"))
    ended = subprocess.run([sys.executable, "-P", "-c", text], cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    assert "42" in ended.stdout
