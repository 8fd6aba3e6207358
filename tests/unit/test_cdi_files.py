"""Files of the Container Device Interface: what is read, and which line of which file is told where something is wrong."""

from __future__ import annotations

import json

import pytest

from dockless.errors import BadInput
from dockless.sandbox.gpus.cdi_files import DeviceFile, Edits, FileMount, Hook, Node, parse

YAML = """\
---
cdiVersion: 0.7.0
kind: example.com/gpu
annotations:
  made.by: "a test"
containerEdits:
  deviceNodes:
  - path: /dev/kfd
devices:
- name: "0"
  containerEdits:
    env: [ONE=1, TWO=a=b, THREE=]
    deviceNodes:
    - path: /dev/dri/renderD128
      hostPath: /dev/dri/renderD129
      type: u
      major: 226
      minor: 129
      fileMode: 432
      permissions: rwm
      uid: 0
      gid: 44
    mounts:
    - hostPath: /usr/lib/one.so
      containerPath: /usr/lib/two.so
      type: bind
      options: [ro, nosuid, nodev, rbind, noexec]
    hooks:
    - hookName: createContainer
      path: /usr/bin/some
      args: [some, --thing]
      env: [A=1]
      timeout: 5
    additionalGids: [44, 109]
- name: all
  containerEdits: {}
"""


def told(text: str, path: str = "/etc/cdi/a.yaml") -> str:
    with pytest.raises(BadInput) as caught:
        parse(path, text)
    assert caught.value.hint and caught.value.subject == path
    return str(caught.value)


def test_everything_that_can_be_said():
    assert parse("/etc/cdi/a.yaml", YAML) == DeviceFile(
        "/etc/cdi/a.yaml",
        "example.com/gpu",
        Edits(nodes=(Node("/dev/kfd", "/dev/kfd", where="/etc/cdi/a.yaml:8"),)),
        {
            "0": Edits(
                (("ONE", "1"), ("TWO", "a=b"), ("THREE", "")),
                (Node("/dev/dri/renderD129", "/dev/dri/renderD128", "c", 226, 129, "rw", "/etc/cdi/a.yaml:14"),),
                (FileMount("/usr/lib/one.so", "/usr/lib/two.so", True, True, True, "/etc/cdi/a.yaml:24"),),
                (Hook("createContainer", "/usr/bin/some", ("some", "--thing"), "/etc/cdi/a.yaml:29"),),
                (44, 109),
            ),
            "all": Edits(),
        },
    )


def test_a_mount_may_be_written_unless_its_file_says_otherwise():
    text = YAML.replace("      type: bind\n      options: [ro, nosuid, nodev, rbind, noexec]\n", "")
    (mount,) = parse("/etc/cdi/a.yaml", text).devices["0"].mounts
    assert mount == FileMount("/usr/lib/one.so", "/usr/lib/two.so", False, False, False, "/etc/cdi/a.yaml:24")


def test_json_means_the_same_with_tabs_and_without_blanks():
    device = {"name": "a", "containerEdits": {"env": ["A=\u00e9/"]}}
    said = {"cdiVersion": "0.3.0", "kind": "example.com/gpu", "devices": [device], "containerEdits": {}}
    for text in (json.dumps(said, indent="\t"), json.dumps(said, separators=(",", ":")), json.dumps(said).replace("/", "\\/")):
        assert parse("/a.json", text).devices["a"].env == (("A", "\u00e9/"),)


@pytest.mark.parametrize(
    ("old", "new", "line", "why"),
    [
        ("made.by", "made.by: x\nother: 1\nmore", 6, "the file has an unknown field 'other'"),
        ("hostPath: /dev/dri", "hostpath: /dev/dri", 15, "a device node has an unknown field 'hostpath'"),
        ("cdiVersion: 0.7.0", "cdiVersion: 0.6.0", 34, "additionalGids came with version 0.7.0, and the file says 0.6.0"),
        ("cdiVersion: 0.7.0", "cdiVersion: 1.2.0", 2, "cdiVersion '1.2.0' is not known"),
        ("cdiVersion: 0.7.0", "cdiVersion: 0.2.0", 2, "cdiVersion '0.2.0' is not known"),
        ("cdiVersion: 0.7.0", "cdiVersion: 1", 2, "cdiVersion is not a text"),
        ("kind: example.com/gpu", "kind: gpu", 3, "kind 'gpu' is not vendor/class"),
        ("kind: example.com/gpu\n", "", 2, "kind is missing"),
        ('name: "0"', "name: 0", 10, "a device's name is not a text"),
        ('name: "0"', "name: -x", 10, "'-x' is no name of a device"),
        ('name: "0"', "name: all", 35, "device all is there twice"),
        ("ONE=1", "ONE", 12, "variable 'ONE' is not NAME=value"),
        ("path: /dev/dri/renderD128", "path: dev/dri", 14, "path 'dev/dri' is not an absolute path"),
        ("path: /dev/dri/renderD128", "path: /dev/../etc", 14, "path '/dev/../etc' is not an absolute path"),
        ("type: u", "type: f", 16, "type 'f' is not b, c, u or p"),
        ("major: 226", "major: '226'", 17, "major is not a whole number"),
        ("minor: 129", "minor: 1.5", 18, "minor is not a whole number"),
        ("permissions: rwm", "permissions: rx", 20, "permissions 'rx' are neither letters of rwm nor none"),
        ("[ro, nosuid", "[ro, 1", 27, "a mount's option is not a text"),
        ("hookName: createContainer\n      path", "path", 29, "a hook has no hookName"),
        ("additionalGids: [44, 109]", "additionalGids: 44", 34, "additionalGids is not a list"),
        ("additionalGids: [44, 109]", "env: [A=1]", 34, "'env' is there twice"),
        ("  containerEdits: {}", "", 35, "a device has no containerEdits"),
        ("  containerEdits: {}", "  containerEdits: []", 36, "containerEdits is not an object"),
        ("cdiVersion: 0.7.0", "cdiVersion: 0.7.0\ncdiVersion: 0.7.0", 3, "'cdiVersion' is there twice"),
        ("  containerEdits: {}", "  containerEdits: {netDevices: []}", 36, "netDevices came with version 1.1.0"),
        ("  containerEdits: {}", "  containerEdits: {intelRdt: {schemata: []}}", 36, "schemata came with version 1.1.0"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(old, new, line, why):
    assert old in YAML
    assert told(YAML.replace(old, new, 1)).startswith(f"/etc/cdi/a.yaml:{line}: {why}")


def test_what_is_no_yaml_is_told_with_its_line():
    assert told(YAML.removesuffix("}\n")).startswith("/etc/cdi/a.yaml:37 is not YAML: ")


def test_a_short_file_is_not_read_as_a_long_one():
    variables = ", ".join(f"A{number}=1" for number in range(100))
    devices = "".join(f"- {{name: a{number}, containerEdits: *edits}}\n" for number in range(600))
    said = f"cdiVersion: 0.7.0\nkind: a.b/c\ncontainerEdits: &edits {{env: [{variables}]}}\ndevices:\n{devices}"
    assert "more than 50000 values" in told(said)


def test_behind_an_alias_the_line_is_that_of_the_alias():
    said = YAML.replace("containerEdits:\n  deviceNodes", "containerEdits: &all\n  deviceNodes", 1)
    assert parse("/a.yaml", said.replace("{}", "*all")).devices["all"].nodes[0].where == "/a.yaml:36"


@pytest.mark.parametrize(
    ("version", "change", "needed"),
    [
        ("0.3.0", {"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]}, "0.4.0"),
        ("0.4.0", {"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}, "0.5.0"),
        ("0.6.0", {"intelRdt": {}}, "0.7.0"),
        ("1.0.0", {"netDevices": []}, "1.1.0"),
        ("1.0.0", {"intelRdt": {"enableMonitoring": True}}, "1.1.0"),
    ],
)
def test_each_version_brought_fields(version, change, needed):
    said = {"cdiVersion": version, "kind": "a.b/c", "devices": [{"name": "x", "containerEdits": change}]}
    assert f"came with version {needed}, and the file says {version}" in told(json.dumps(said), "/a.json")
    assert parse("/a.json", json.dumps(said | {"cdiVersion": needed})).devices["x"]


@pytest.mark.parametrize(
    ("version", "change", "needed"),
    [
        ("0.4.0", {"devices": [{"name": "0", "containerEdits": {}}]}, "0.5.0"),
        ("0.5.0", {"annotations": {}}, "0.6.0"),
        ("0.5.0", {"kind": "a.b/c.d"}, "0.6.0"),
        ("0.5.0", {"devices": [{"name": "x", "annotations": {"a": "b"}, "containerEdits": {}}]}, "0.6.0"),
    ],
)
def test_each_version_brought_names(version, change, needed):
    said = {"cdiVersion": version, "kind": "a.b/c", "devices": [{"name": "x", "containerEdits": {}}]} | change
    assert f"came with version {needed}" in told(json.dumps(said), "/a.json")
    parse("/a.json", json.dumps(said | {"cdiVersion": needed}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "/a.json:1 is not JSON"),
        ('{"kind":\n}', "/a.json:2 is not JSON"),
        ("[]", "/a.json:1: the file is not an object"),
        ('{"cdiVersion": "0.3.0", "kind": "a.b/c", "devices": []}', "/a.json:1: there are no devices"),
        ('{"cdiVersion": "0.3.0", "kind": "a.b/c", "devices": ["x"]}', "/a.json:1: a device is not an object"),
        ("[" * 100_000, "/a.json:1 is not JSON"),
    ],
)
def test_what_is_no_description(text, why):
    assert told(text, "/a.json").startswith(why)


def test_what_cannot_be_done_here_is_kept_for_who_asks():
    said = {"cdiVersion": "1.1.0", "kind": "a.b/c", "devices": [
        {"name": "x", "containerEdits": {"netDevices": [{"hostInterfaceName": "eth1"}]}},
        {"name": "y", "containerEdits": {"intelRdt": {"closID": "a"}}}]}  # fmt: skip
    found = parse("/a.json", json.dumps(said)).devices
    assert "/a.json:1: netDevices: " in found["x"].refused and "/a.json:1: intelRdt: " in found["y"].refused


@pytest.mark.parametrize(
    ("old", "new", "line", "why"),
    [
        ("type: u", "type: p", 16, "a named pipe is no device"),
        ("type: bind", "type: tmpfs", 26, "a mount of type 'tmpfs': files and directories are bound"),
        ("hostPath: /usr/lib/one.so\n      containerPath: /usr/lib/two.so\n      type: bind",
         "hostPath: tmpfs\n      containerPath: /scratch\n      type: tmpfs", 26, "a mount of type 'tmpfs': files and directories"),
        ("[ro, nosuid", "[ro, suid", 27, "option 'suid' of a mount is not among ro, rro, rw"),
    ],
)  # fmt: skip
def test_what_is_sound_and_not_done_here_is_told_to_who_asks_for_that_device(old, new, line, why):
    assert old in YAML
    found = parse("/etc/cdi/a.yaml", YAML.replace(old, new, 1))
    assert found.devices["0"].refused.startswith(f"/etc/cdi/a.yaml:{line}: {why}")
    assert not found.devices["all"].refused and not found.edits.refused


@pytest.mark.parametrize(("said", "access"), [("none", ""), ('""', "rw"), ("rr", "r"), ("wrw", "rw"), ("m", "rw"), ("mr", "r")])
def test_permissions(said, access):
    (node,) = parse("/a.yaml", YAML.replace("permissions: rwm", f"permissions: {said}")).devices["0"].nodes
    assert node.access == access


@pytest.mark.parametrize(("options", "readonly"), [("rro", True), ("rro, rbind", True), ("rbind", False), ("rw", False)])
def test_mounts_that_are_read_only_with_what_is_below_them(options, readonly):
    (mount,) = parse("/a.yaml", YAML.replace("[ro, nosuid, nodev, rbind, noexec]", f"[{options}]")).devices["0"].mounts
    assert (mount.readonly, mount.recursive) == (readonly, "rbind" in options)
