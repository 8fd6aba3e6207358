"""Which tests are asked about a file: those that import it or are called like it, then those of its package that run the real thing."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

MOST = 8
"""Files that are the nearest."""
_KINDS = ("unit", "native", "attacks", "integration")
_PACKAGES = ("native", "sandbox", "cgroups", "images", "sched")
DOOR = "door"
_WORDS = {
    "base/fields": "keywords option_grammar limits",
    "cgroups/apply": "cgroup_usage limits cgroup_bare",
    "cgroups/systemd": "delegation cgroup_systemd",
    "images/check": "image_check image_store",
    "images/model/choose": "image_documents image_store pull_rows",
    "images/layers/compression": "image_save image_commit image_tarwriter layers_bombs",
    "images/archive/discover": "image_store image_documents layers_content",
    "images/archive/entries": "image_commit image_export image_diff",
    "images/transfer/fetch": "image_download image_partial pull_rows registry_transport registry_pull",
    "images/archive/importing": "image_export cli_images",
    "images/archive/ingest": "image_store image_check pull_rows",
    "images/archive/load": "image_store cli_images",
    "images/layers/owned": "image_owned",
    "images/archive/packing": "image_commit image_tarwriter image_diff",
    "images/layers/pipeline": "image_store image_partial pull_rows layers_bombs",
    "images/transfer/push": "push",
    "images/transfer/sending": "push",
    "images/registry": "registry_challenge registry_credentials registry_addresses registry_transport registry_pull pull_rows",
    "images/archive/save": "image_save",
    "images/model/shape": "image_layer image_store image_diff",
    "images/archive/capture": "image_capture snapshot snapshot_moment sandbox_commit",
    "images/archive/source": "image_store image_save cli_images",
    "images/transfer/transfer": "image_partial pull_rows pull_mirrors pull_processes",
    "images/transfer/upload": "push",
    "native/clone": "launch_threads launcher",
    "native/layer/erofs": "image_erofs image_merged test_erofs sandbox_indexed",
    "native/layer/fault": "layer_writer tarstream_edges",
    "native/launcher/group": "integration/test_ending integration/test_exec foreground_found",
    "native/launcher/init": "launcher operations plan_effects sandbox_process",
    "native/launcher/keeper": "launcher detached damaged plan_effects",
    "native/launcher/launcher": "launcher operations",
    "native/layer/layer": "layer_writer layers_paths layers_content image_layer",
    "native/layer/lister": "image_tarstream",
    "native/launcher/log": "detached cli_run",
    "native/layer/lower": "layer_writer layers_content",
    "native/launcher/marked": "attacks/test_outliving integration/test_exec",
    "native/launcher/numbers": "integration/test_ending integration/test_exec",
    "native/launcher/ops": "launcher operations plan_effects",
    "native/layer/pathset": "layer_writer",
    "native/layer/pax": "image_tarstream layer_writer",
    "native/launcher/plan": "validator launcher operations",
    "native/launcher/remove": "launcher layer_writer",
    "native/launcher/restarter": "restarting",
    "native/launcher/report": "launcher detached",
    "native/shim": "launch_threads launcher",
    "native/simulated": "gpu_stand_in gpu_nvml gpu_topology",
    "native/layer/survey": "image_capture snapshot_moment",
    "native/layer/tar": "image_tarstream layer_writer",
    "sandbox/binds": "compile sandbox_mounts bad_input",
    "sandbox/seccomp/bpf": "seccomp",
    "sandbox/plan/builder": "plan_golden compile",
    "sandbox/network/": "unit/test_networks network_attach network_table network_verbs answers_of_the_ended",
    "sandbox/network/barriers": "network_beside",
    "sandbox/network/dns": "resolver names",
    "sandbox/network/name_": "resolver names network_names",
    "sandbox/network/own_host": "own_networks",
    "sandbox/network/pasta": "pasta own_networks",
    "sandbox/network/res": "resolver names",
    "sandbox/run/joining": "network_attach network_verbs shared_network",
    "sandbox/run/named_pools": "named_pools pool_socket",
    "sandbox/run/networks": "network_verbs",
    "sandbox/run/own_networks": "own_networks",
    "sandbox/run/pasta": "pasta",
    "sandbox/run/pool": "integration/test_pool named_pools pool_socket",
    "sandbox/zygote/": "zygote",
    "sandbox/run/output": "logs detached cli_run",
    "sandbox/run/start": "user_groups detached",
    "sandbox/run/detached": "detached stale_records damaged",
    "sandbox/features": "features compile",
    "sandbox/resolve": "compile bad_input sandbox",
    "sandbox/rootfs": "plan_golden plan_effects sandbox_root runtime",
    "sched/engine/admission/admission": "sched_answers sched_engine submit_fields sched_daemon",
    "sched/wire/answers": "sched_answers sched_server sched_daemon",
    "sched/engine/attempts": "sched_engine sched_daemon",
    "sched/callers": "sched_callers sched_server sched_daemon",
    "sched/daemon": "sched_daemon",
    "sched/engine/engine": "sched_engine sched_retention sched_wants sched_daemon",
    "sched/engine/entry": "sched_engine stop_signals sched_daemon",
    "sched/engine/admission/gang": "sched_gangs integration/test_gangs",
    "sched/engine/lifecycle/gang": "sched_gangs integration/test_gangs",
    "sched/engine/lifecycle/gang_networks": "gang_networks distributed",
    "sched/engine/gpus/hostgpus": "gpu_nvml sched_daemon",
    "sched/engine/lifecycle/housekeeping": "sched_retention sched_wants sched_daemon",
    "sched/engine/queue_state": "sched_engine sched_gangs sched_preempting gpu_leases",
    "sched/store/kept": "sched_retention",
    "sched/store/queries": "sched_queue sched_retention",
    "sched/store/schema": "sched_queue",
    "sched/wire/logs": "sched_answers sched_client sched_daemon",
    "sched/engine/gpus/mps": "sched_mps gpu_mps",
    "sched/engine/lifecycle/remains": "sched_wants sched_engine",
    "sched/wire/client": "sched_client sched_answers",
    "sched/wire/connection": "sched_client sched_answers",
    "sched/wire/submitting": "sched_parts sched_client",
    "sched/wire/protocol": "sched_answers sched_client",
    "sched/wire/server": "sched_answers sched_server sched_daemon",
    "sched/policy/packing": "packing policy",
    "sched/engine/gpus/sharing": "gpu_shares gpu_mps",
    "sched/engine/admission/per_user": "sched_retention",
    "src/dockless/_async_box": "aio",
    "src/dockless/_async_executing": "aio integration/test_exec",
    "src/dockless/_async_submitting": "submitted aio",
    "src/dockless/_box": "results front_door integration/test_run",
    "src/dockless/cli/signals": "cli_signals cli_run",
    "src/dockless/cli/bars": "cli_images",
    "src/dockless/cli/boxes": "cli_run cli_parser",
    "src/dockless/cli/jobs": "cli_jobs cli_queue submit_fields hostile_text",
    "src/dockless/cli/logs": "logs_on_a_terminal cli_run",
    "src/dockless/cli/inspecting": "cli_output cli_images",
    "src/dockless/cli/output": "cli_output hostile_text",
    "src/dockless/cli/progress": "cli_output cli_images",
    "src/dockless/cli/run": "cli_run submit_fields",
    "src/dockless/cli/sandbox_options": "cli_sandbox_options cli_parser",
    "src/dockless/cli/disk_usage": "cli_images",
    "src/dockless/doctor": "doctor",
    "src/dockless/_gpus": "cli_run front_door",
    "base/idmaps": "userns",
    "base/text": "cli_output hostile_text",
    "src/dockless/_exchange": "streams stdio results integration/test_run",
}
"""Further words by which a file's tests may be called."""

_LAYERS = ("native/layer/",)
"""What of the native package reads and writes layers, and has no part in a start."""

_WIDE = {
    "native": "native/ unit/test_layer_writer.py integration/test_run.py integration/test_sandbox_ attacks/test_runtime_",
    "layers": "unit/test_layer_writer.py unit/test_image_ attacks/test_layers_ integration/test_image_erofs.py"
    " integration/test_image_interop.py integration/test_image_overlay.py integration/test_sandbox_indexed.py",
    "sandbox": "unit/test_compile.py unit/test_plan_golden.py integration/test_run.py integration/test_sandbox_"
    " integration/test_detached.py attacks/test_runtime_",
    "cgroups": "unit/test_limits.py integration/test_cgroup_bare.py integration/test_run.py",
    "images": "unit/test_image_ unit/test_registry_ integration/test_image_ integration/test_registry_transport.py"
    " integration/test_pull_rows.py",
    "sched": "unit/test_sched_ integration/test_sched_daemon.py integration/test_submit_fields.py attacks/test_sched_attacks.py",
    DOOR: "unit/test_front_door.py unit/test_cli_ integration/test_run.py integration/test_submit_fields.py integration/test_cli_"
    " integration/test_bad_input.py",
}
"""What runs the package for real, the quickest first."""

_EVERY = "unit/test_layering.py "
"""What reads the sources."""

_SLOW = (
    "attacks/test_layers_bombs.py attacks/test_registry_endless.py attacks/test_sched_fairness.py"
    " integration/test_daemon_crash.py integration/test_daemon_full_disk.py integration/test_documents.py"
    " integration/test_explained_script.py"
    " integration/test_fault_points.py integration/test_image_concurrency.py integration/test_image_erofs.py"
    " integration/test_image_interop.py integration/test_pull_chaos.py integration/test_pull_crashes.py"
    " integration/test_registry_interop.py integration/test_stress.py"
).split()
"""Half a minute and more each: asked after all others, however near they are."""


def package_of(path: str) -> str:
    first = path.split("/")[0]
    return first if first in _PACKAGES else DOOR


def tests_for(tests: Path, path: str) -> tuple[list[str], list[str]]:
    """(nearest, wider): test files, relative to ``tests``."""
    files = sorted(str(file.relative_to(tests)) for kind in _KINDS for file in (tests / kind).glob("test_*.py"))
    scores = {file: _score(tests, file, path) for file in files}
    near = sorted((file for file in files if scores[file] > 0), key=lambda file: (-scores[file], _cost(file)))[:MOST]
    near.sort(key=_cost)  # those of a kind stay in their order
    package = _EVERY + _WIDE["layers" if path.startswith(_LAYERS) else package_of(path)]
    wide = [file for prefix in package.split() for file in files if file.startswith(prefix) and file not in near]
    late = [file for file in (*near, *wide) if file in _SLOW]
    return [file for file in near if file not in late], [file for file in wide if file not in late] + late


def _cost(file: str) -> int:
    return _KINDS.index(file.split("/")[0])


def _score(tests: Path, file: str, path: str) -> int:
    """4 for a name that says it, 3 more for a module that is imported itself, up to 2 for the names of its own functions and classes."""
    stem = path.rsplit(".", 1)[0]
    words = {word for key, more in _WORDS.items() if stem.startswith(key) for word in more.split()}
    own = stem.split("/")[-1]
    if len(own) > 3 and own != "__init__":
        words.add(own.replace("_", ""))
    score = 4 * any(word.replace("_", "") in file.replace("_", "") for word in words)
    score += 3 * (_module(path) in _imports(tests / file))
    return score + min(2, len(_defined(tests.parent / path) & _said(tests / file)))


def _module(path: str) -> str:
    dotted = re.sub(r"(/__init__)?\.\w+$", "", path.removeprefix("src/dockless/")).replace("/", ".")
    return f"dockless.{dotted}"


@cache
def _defined(path: Path) -> frozenset[str]:
    """Names that only this file is likely to use."""
    if path.suffix != ".py":
        return frozenset()
    nodes = ast.parse(path.read_bytes()).body
    found = (node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)))
    return frozenset(name for name in found if len(name) > 5)


@cache
def _said(file: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", file.read_text()))


@cache
def _imports(file: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{name.name}" for name in node.names)
    return frozenset(found)
