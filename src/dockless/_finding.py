"""``dockless.create``, ``dockless.start`` and ``dockless.list``: detached sandboxes, and all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dockless._box import Sandbox
from dockless._gpus import leased
from dockless._life import check_labels, state_of
from dockless._options import gpus_wanted, image_and_args, make_spec
from dockless._pulling import Tell, present
from dockless.base import settings
from dockless.base.checks import checked
from dockless.base.dataclass import replace
from dockless.base.interrupts import held
from dockless.base.paths import Argument
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput, SandboxGone
from dockless.sandbox.filters import has_labels
from dockless.sandbox.restart import Restart, check_policy, parse_restart
from dockless.sandbox.state import STATES

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import Options
    from dockless.sandbox.spec import Spec


def create(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    id: str | None = None,
    remove: bool = False,
    restart: str | None = None,
    progress: Tell | None = None,
    **options: Unpack[Options],
) -> Sandbox:
    """Write a sandbox down without starting it: ``box.start()`` does that, in this program or another one, and ``box.rm()`` forgets it.

    The keywords are those of ``start``. Its image is brought now and kept as long as it is there; GPUs are leased when it is started.
    Errors: ``BadInput`` where the id is taken or a keyword cannot be, ``UnknownImage`` and those of a pull.
    """
    from dockless.sandbox.run import detached

    spec, labels, policy = _asked(image, args, restart, remove, progress, options)
    gpus = gpus_wanted(options)
    if gpus is not None or spec.cdi:
        from dockless import _gpus

        spec, gpus = _gpus.with_devices(spec, gpus)
    if gpus is not None:
        from dockless.sandbox.gpus.gpu import parse_request

        parse_request(gpus)
    return Sandbox.of(detached.create(spec, id=id, labels=labels, remove=remove, gpus="" if gpus is None else str(gpus), restart=policy))


def start(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    id: str | None = None,
    remove: bool = False,
    restart: str | None = None,
    progress: Tell | None = None,
    **options: Unpack[Options],
) -> Sandbox:
    """Start a sandbox that goes on without this program. Returns when its program has been exec'd.

    ``id``: a name of your own. ``remove``: nothing of it is kept at its end. Its output is kept, see ``Sandbox.logs``.
    ``restart``: its restart policy: ``"on-failure"`` or ``"on-failure:3"`` restarts it when its program fails, ``"always"`` and
    ``"unless-stopped"`` whenever it ends, until somebody stops or kills it. Every other keyword: ``Options``. The handle is no ``with`` to
    end it: leaving one lets go of the handle, and the sandbox goes on. Errors: those of ``run``, and ``BadInput`` where the id is taken.
    """
    from dockless.sandbox.run import detached

    asked, labels, policy = _asked(image, args, restart, remove, progress, options)
    started = None
    try:
        with held(), leased(asked, gpus_wanted(options)) as (spec, lease):
            if lease is not None and lease.simulated:
                labels["gpus"] = "simulated"
            started = Sandbox.of(
                detached.start(spec, id=id, labels=labels, remove=remove, restart=policy, leased=lease.sockets if lease else ())
            )
    except KeyboardInterrupt:
        if started is not None:
            with held():
                started.rm(force=True)
        raise
    return started


def _policy(restart: str | None, remove: bool, options: Options) -> Restart:
    """``BadInput`` for what is none, or for one of what is removed at its end, or ends by a limit that each start would begin anew."""
    policy = parse_restart("no" if restart is None else restart)
    check_policy(policy, removed=remove, ttl=options.get("ttl"), idle_timeout=options.get("idle_timeout"))
    return policy


def _asked(
    image: str | Sequence[Argument] | None,
    args: Sequence[Argument] | None,
    restart: str | None,
    remove: bool,
    progress: Tell | None,
    options: Options,
) -> tuple[Spec, dict[str, str], Restart]:
    """The spec, with the name by which its image is in the store now, the labels, and the restart policy."""
    policy = _policy(restart, remove, options)
    name, arguments = image_and_args(image, args)
    spec = make_spec(name, arguments, **options)
    labels = check_labels(options.get("labels"))
    reference = present(spec.image, options.get("pull") or "missing", progress, options.get("platform"))
    kept = spec.log_size or (settings.load()["logs.size"] if spec.keep_log else 0)
    return replace(spec, image=reference, log_size=kept), labels, policy


@checked
def list(*, labels: Mapping[str, str | None] | None = None, state: str | Iterable[str] | None = None) -> Sequence[Sandbox]:
    """The sandboxes of this user, detached ones and those of programs that run, by id. ``labels``: those that have all of them, None for
    any value. ``state``: ``running``, or several. ``BadInput`` for a state that is none."""
    from dockless.sandbox.run import box

    wanted = (state,) if isinstance(state, str) else None if state is None else tuple(state)
    for one in wanted or ():
        if one not in STATES:
            raise BadInput(f"state {one!r} is unknown", subject="state", hint=f"it is one of {', '.join(STATES)}")
    found = sorted(box.everything(), key=lambda one: one.id)
    return [Sandbox.of(one) for one in found if (wanted is None or state_of(one) in wanted) and (not labels or _has(one, labels))]


def _has(box: object, labels: Mapping[str, str | None]) -> bool:
    try:
        known = box.labels  # type: ignore[attr-defined]
    except SandboxGone:
        return False
    return has_labels(known, labels.items())
