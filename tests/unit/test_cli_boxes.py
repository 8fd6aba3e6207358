"""The verbs for detached sandboxes, as calls of what they are asked about; and the GPUs where no daemon answers."""

from __future__ import annotations

import json
import signal

import pytest

from dockless.cli import main
from dockless.sandbox import detached, gpu, gpu_lease


class _Box:
    def __init__(self) -> None:
        self.id, self.labels = "box", {}
        self.asked: list[object] = []

    def kill(self) -> None:
        self.asked.append("kill")

    def send_signal(self, number: int) -> None:
        self.asked.append(number)


@pytest.mark.parametrize(
    ("words", "asked"),
    [((), "kill"), (("-s", "KILL"), "kill"), (("-s", "9"), "kill"), (("-s", "TERM"), signal.SIGTERM), (("-s", "SIGHUP"), signal.SIGHUP)],
)
def test_kill_ends_everything_and_any_other_signal_goes_to_the_job(monkeypatch, words, asked):
    box = _Box()
    monkeypatch.setattr(detached, "get", lambda name: box)
    assert main(["kill", *words, "box"]) == 0 and box.asked == [asked]


def test_gpus_where_no_daemon_answers(home, monkeypatch, capsys):
    """Held by a lease, in use by somebody else, free."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "3x80G,busy=2")
    inventory = {unit.index: unit for unit in gpu.units(gpu.inventory())}
    with gpu_lease.lease(gpu.parse_request("device=1")):
        assert main(["info", "--json"]) == 0
    shown = {one["index"]: (one["held"], one["outside"]) for one in json.loads(capsys.readouterr().out)["gpus"]}
    busy = next(index for index, unit in inventory.items() if unit.processes)
    assert busy != 1 and shown == {index: (index == 1, index == busy) for index in range(3)}
