"""Docker's (and Podman's) verbs and options that dockless does not have, and what to use here instead, as data.

Words that mean the same here are simply accepted and stand in no table. ``use`` is a line for ``dockless`` that the parser takes (a test
parses each), empty where there is nothing yet. Source: the reference of docker's command line and podman(1), 2025.
"""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """``say``: what that means here, without a full stop."""

    say: str
    use: str = ""

    @property
    def hint(self) -> str:
        return f"{self.say}: dockless {self.use}" if self.use else self.say


NOT_YET = "dockless has no such thing yet"
_PORTS = "say which port of the host leads to which inside: an image's EXPOSE is its author's word, not yours"
_LINKS = "sandboxes of a user network find one another by name"
_HEALTH = "not supported; the checks have --health-interval, --health-timeout, --health-retries and --health-start-period"
_DETACH = Word(
    "to detach from a terminal, start the sandbox in the background with -t (run -dt) and attach", "attach --detach-keys ctrl-x NAME"
)
_FORMAT = "there are no templates for that; take the fields from JSON"
_FILTER = "there are no filters for that; take what is wanted from JSON"
_PLATFORM = "the platform is one word"
_KEPT_LOGS = "output is kept in files of dockless's own, and what reads it takes it from there"
_TLS = "registries.conf says how a registry is reached (insecure = true)"
_SERVICES = "dockless starts one host's jobs; services and clusters are for other tools"
_STACKS = "a Compose file can be submitted as a job"
_SCANS = "dockless looks for no vulnerabilities; give a scanner the image's files"
_DESKTOP = "that is a part of Docker Desktop or of its services; dockless has nothing of the kind"
_ENGINE = "dockless works on this host; there is no engine to choose"

VERBS: dict[str, Word] = {
    "artifact": Word(NOT_YET),
    "auto-update": Word("nothing is updated by itself; pull what a name means now", "pull IMAGE"),
    "build": Word("dockless builds no Dockerfiles; run the steps and keep what they changed", "commit NAME IMAGE"),
    "builder": Word("dockless builds no Dockerfiles; unneeded layers go with", "prune"),
    "buildx": Word("dockless builds no Dockerfiles; run the steps and keep what they changed", "commit NAME IMAGE"),
    "checkpoint": Word(NOT_YET),
    **dict.fromkeys("ai app cloud desktop dev extension feedback mcp model offload pass sandbox".split(), Word(_DESKTOP)),
    "compose": Word(_STACKS, "submit compose.yaml"),
    "context": Word(_ENGINE),
    "farm": Word(NOT_YET),
    "generate": Word(_SERVICES),
    "healthcheck": Word("its keeper checks it; what the checks say is in", "inspect NAME"),
    "init": Word("every sandbox has an init process"),
    "kube": Word(_SERVICES),
    "ls": Word("sandboxes and images are listed apart", "ps"),
    "machine": Word("dockless needs no virtual machine; what this host can do", "doctor"),
    "manifest": Word("manifests are read, not made", "inspect --raw manifest IMAGE"),
    "mount": Word("an image's files can be had as a tar", "export IMAGE -o FILE"),
    "node": Word(_SERVICES),
    "play": Word(_SERVICES),
    "plugin": Word("there are no plugins"),
    "pod": Word("there are no pods; one sandbox may hold several processes", "run IMAGE -- sh -c COMMANDS"),
    "quadlet": Word(_SERVICES),
    "sbom": Word(_SCANS, "export IMAGE -o FILE"),
    "scout": Word(_SCANS, "export IMAGE -o FILE"),
    "secret": Word("there are no secrets yet; bind a file read-only", "run -v ./secret:/run/secret:ro IMAGE"),
    "service": Word(_SERVICES),
    "stack": Word(_STACKS, "submit compose.yaml"),
    "swarm": Word(_SERVICES),
    "trust": Word("signatures are not checked yet; policy.json refuses what needs them"),
    "umount": Word("nothing stays mounted"),
    "unmount": Word("nothing stays mounted"),
    "unshare": Word("a namespace of your own, with the host's system", "run -- sh"),
    "untag": Word("a name is taken away with", "rmi IMAGE"),
}  # fmt: skip

BEFORE: dict[str, Word] = {
    "-c --context --connection": Word(_ENGINE),
    "--cgroup-manager": Word("dockless chooses the control group; what this host offers", "doctor"),
    "--config": Word(
        "settings are read from dockless.toml; DOCKLESS_HOME moves all that dockless keeps, logins are read from REGISTRY_AUTH_FILE"
    ),
    "-D --debug": Word("each step of a start is printed by", "run --explain IMAGE"),
    "-H --host --url --remote -r": Word(_ENGINE),
    "-l --log-level": Word("each step of a start is printed by", "run --explain IMAGE"),
    "--root --runroot --storage-driver --storage-opt --tmpdir --volumepath": Word("DOCKLESS_HOME moves all that dockless keeps"),
    "--runtime": Word("there is one, dockless's own"),
    "--tls --tlscacert --tlscert --tlskey --tlsverify": Word(_ENGINE),
}
"""Options that Docker and Podman take before the verb."""

_OWN = "a namespace of its own is the default; leave it out"
_JOIN = "a sandbox joins no other one's namespace yet; one sandbox may hold several processes"

VALUES: dict[str, dict[str, Word]] = {
    "--userns": {"auto keep-id nomap remap private": Word("ids are mapped by /etc/subuid in any case; leave it out", "run IMAGE")},
    **{
        f"--{name}": {"private shareable none": Word(_OWN, "run IMAGE"), "container:": Word(_JOIN, "run IMAGE -- sh -c COMMANDS")}
        for name in ("pid", "ipc", "uts", "cgroupns")
    },
    "--log-driver": {
        "": Word(_KEPT_LOGS, "logs -f NAME"),
    },
    "--pull": {
        "true": Word("use always or missing", "run --pull always IMAGE"),
        "false": Word("use always or missing", "run --pull missing IMAGE"),
    },
    "--condition": {"not-running stopped exited": Word("ended is the default; leave it out", "wait NAME")},
    "--filter": {
        "type=container": Word("all events are of sandboxes; leave it out", "events"),
        "type=image type=volume type=network type=daemon type=plugin type=pod type=system": Word("all events are of sandboxes", "events"),
    },
}
"""Values that Docker and Podman take for an option of ours; one that ends with a colon is the beginning of a value, an empty one is any."""

HOST_NAME = Word("-h alone lists the options; the host name inside is", "run --hostname NAME IMAGE")

_RUN: dict[str, Word] = {
    "--annotation": Word("there are labels instead", "run --label NAME=VALUE IMAGE"),
    "-a --attach": Word("without -d all three standard streams are yours", "run IMAGE"),
    "--arch --variant": Word(_PLATFORM, "run --platform linux/amd64 IMAGE"),
    "--authfile": Word("logins are read from where login keeps them", "login REGISTRY"),
    "--blkio-weight": Word("the share of a disk is", "run --io-weight 100 IMAGE"),
    "--blkio-weight-device": Word("the share holds for all disks", "run --io-weight 100 IMAGE"),
    "--cert-dir": Word(_TLS),
    "--cgroup-conf": Word("the limits have names of their own", "run --help"),
    "--cgroup-parent": Word("dockless chooses the control group; what this host offers", "doctor"),
    "--chrootdirs": Word(NOT_YET),
    "--cgroups": Word("a control group is used where there is one", "doctor"),
    "--conmon-pidfile": Word("the first process is in", "ps --json"),
    "--cpu-count": Word("cores are", "run --cpus 2 IMAGE"),
    "--cpu-percent": Word("cores are", "run --cpus 0.5 IMAGE"),
    "--cpu-period": Word("quota and period are one number of cores", "run --cpus 1.5 IMAGE"),
    "--cpu-quota": Word("quota and period are one number of cores", "run --cpus 1.5 IMAGE"),
    "--cpu-rt-period": Word("cgroup v2 has no real-time budgets"),
    "--cpu-rt-runtime": Word("cgroup v2 has no real-time budgets"),
    "-c --cpu-shares": Word("shares are weights of 1 to 10000 here, 100 by default", "run --cpu-weight 100 IMAGE"),
    "--creds": Word("log in first", "login REGISTRY"),
    "--detach-keys": _DETACH,
    "--device-cgroup-rule": Word("devices are given by their nodes", "run --device /dev/fuse IMAGE"),
    "--disable-content-trust": Word("signatures are not checked; policy.json refuses what needs them"),
    "--env-host": Word("name the variables that are to be taken along", "run -e HOME IMAGE"),
    "--env-merge": Word("write the value out", "run -e PATH=/bin IMAGE"),
    "--expose": Word("sandboxes of one network reach each other's ports anyway; from outside", "run --network bridge -p 8080:80 IMAGE"),
    "--gidmap": Word("ids are mapped by /etc/subgid; see", "doctor"),
    "--gpu": Word("the option is --gpus", "run --gpus 1 IMAGE"),
    "--health-log-destination": Word(_HEALTH, "run --health-cmd COMMAND IMAGE"),
    "--health-max-log-count": Word(_HEALTH, "run --health-cmd COMMAND IMAGE"),
    "--health-max-log-size": Word(_HEALTH, "run --health-cmd COMMAND IMAGE"),
    "--health-on-failure": Word(_HEALTH, "run --health-cmd COMMAND IMAGE"),
    "--health-start-interval": Word(_HEALTH, "run --health-cmd COMMAND IMAGE"),
    "--health-startup-cmd": Word(_HEALTH, "run --health-cmd COMMAND IMAGE"),
    "--hostuser": Word("ids are those of the image's own /etc/passwd", "run --user NAME IMAGE"),
    "--init-ctr": Word("there are no pods; run it first", "run IMAGE"),
    "--init-path": Word("every sandbox has an init process of dockless's own; leave it out", "run IMAGE"),
    "--hooks-dir": Word("there are no hooks"),
    "--hosts-file": Word("bind it", "run -v ./hosts:/etc/hosts:ro IMAGE"),
    "--http-proxy": Word("name the variables that are to be taken along", "run -e http_proxy IMAGE"),
    "--image-volume": Word("an image's volumes are a part of its root"),
    "--io-maxbandwidth": Word("a limit for a disk is", "run --io /data:rbps=50M IMAGE"),
    "--io-maxiops": Word("a limit for a disk is", "run --io /data:riops=1000 IMAGE"),
    "--isolation": Word("that is for Windows; here there are profiles", "run --profile untrusted IMAGE"),
    "--kernel-memory": Word("cgroup v2 counts the kernel's memory with the rest", "run --memory 4G IMAGE"),
    "--link": Word(_LINKS, "run --network NAME IMAGE"),
    "--link-local-ip": Word("an address is one of the network's subnet", "run --network NAME:ip=10.20.0.5 IMAGE"),
    "--memory-reservation": Word("memory that is protected, or from which on it is slowed down", "run --memory-low 1G IMAGE"),
    "--memory-swappiness": Word("cgroup v2 has none; swap itself can be limited", "run --memory 4G --memory-swap 4G IMAGE"),
    "--no-hosts": Word("the image's own /etc/hosts stays as it is; leave it out", "run IMAGE"),
    "--no-hostname": Word("the image's own /etc/hostname stays as it is; leave it out", "run IMAGE"),
    "--oom-kill-disable": Word("cgroup v2 cannot; slow it down before instead", "run --memory-high 3G IMAGE"),
    "--os": Word(_PLATFORM, "run --platform linux/amd64 IMAGE"),
    "--passwd --passwd-entry": Word("the image's own /etc/passwd stays as it is"),
    "--personality": Word(NOT_YET),
    "--pidfile": Word("the first process is in", "ps --json"),
    "--pod --pod-id-file": Word("there are no pods; one sandbox may hold several processes", "run IMAGE -- sh -c COMMANDS"),
    "--preserve-fds": Word("standard input, output and error alone are passed on"),
    "--privileged": Word("every capability and device is a profile", "run --profile privileged IMAGE"),
    "-P --publish-all": Word(_PORTS, "run --network bridge -p 8080:80 IMAGE"),
    "--rdt-class": Word(NOT_YET),
    "--read-only-tmpfs": Word("memory that can be written below a read-only root", "run --read-only --tmpfs /tmp IMAGE"),
    "--seccomp-policy": Word("a profile is a file", "run --security-opt seccomp=FILE IMAGE"),
    "--replace": Word("remove the old one first", "rm -f NAME"),
    "--requires": Word("wait for the other one first", "wait NAME"),
    "--rmi": Word("remove the image afterwards", "rmi IMAGE"),
    "--rootfs": Word("make an image of it", "import FILE IMAGE"),
    "--runtime": Word("there is one, dockless's own"),
    "--sdnotify": Word(NOT_YET),
    "--secret": Word("there are no secrets yet; bind a file read-only", "run -v ./secret:/run/secret:ro IMAGE"),
    "--sig-proxy": Word("signals are always passed on; leave it out", "run IMAGE"),
    "--storage-opt": Word("what is written to the image has a limit by", "run --disk 10G IMAGE"),
    "--subgidname": Word("ids are mapped by /etc/subgid; see", "doctor"),
    "--subuidname": Word("ids are mapped by /etc/subuid; see", "doctor"),
    "--systemd": Word("no init system runs inside"),
    "--tls-verify": Word(_TLS),
    "--tz": Word("say it by the variable", "run -e TZ=Europe/Berlin IMAGE"),
    "--uidmap": Word("ids are mapped by /etc/subuid; see", "doctor"),
    "--unsetenv": Word("a variable can be set to nothing", "run -e NAME= IMAGE"),
    "--unsetenv-all": Word("a variable can be set to nothing", "run -e NAME= IMAGE"),
    "--use-api-socket": Word("there is no engine and no socket of one"),
    "--volume-driver": Word("there are no drivers; a named volume is a directory", "run -v NAME:/data IMAGE"),
    "--volumes-from": Word("name the same volume twice", "run -v NAME:/data IMAGE"),
}  # fmt: skip


FLAGS: dict[str, dict[str, Word]] = {
    "run": _RUN,
    "create": _RUN,
    "submit": {
        **_RUN,
        "--restart": Word("jobs have no restart policy; to queue one again after a reboot", "submit --on-reboot requeue IMAGE"),
        "--cidfile": Word("its number is printed by", "submit -q IMAGE"),
        "-l --label --label-file": Word("a job has a name and a group instead", "submit --name NAME IMAGE"),
        "-d --detach": Word("a job of the queue always is; leave it out", "submit IMAGE"),
        "--id": Word("the queue gives the number; a name is", "submit --name NAME IMAGE"),
    },
    "clone": {"--image": Word("a clone keeps its image; another one can be written into it, opened as a job file", "clone --edit ID")},
    "ps": {
        "-n --last": Word("the list is short; all of them are", "ps --all"),
        "-l --latest": Word("all of them are", "ps --all"),
        "--no-trunc": Word("nothing is cut in", "ps --json"),
        "-s --size": Word("what an image takes is in", "df"),
        "--sort": Word("sort the JSON", "ps --json"),
        "--watch -w": Word("watch(1) repeats it", "ps"),
        "--external --pod -p --sync --noheading --ns": Word(NOT_YET),
    },
    "images": {
        "-a --all": Word("all of them are listed anyway; leave it out", "images"),
        "--digests": Word("the digests are in", "images --json"),
        "--no-trunc": Word("nothing is cut in", "images --json"),
        "--tree": Word("layers of one image are in", "history IMAGE"),
        "--sort --noheading -n --history": Word("take the fields from JSON", "images --json"),
    },
    "logs": {
        "--details": Word("labels are in", "inspect NAME"),
        "--color --names": Word("one at a time", "logs NAME"),
        "-l --latest": Word("name it; the newest are in", "ps --all"),
    },
    "stop": {
        "-s --signal": Word("the stop signal is set at the start; any other is sent with", "kill -s HUP NAME"),
        "-a --all": Word("name them", "ps -q"),
        "-l --latest --cidfile --filter -f -i --ignore": Word("name them", "ps -q"),
    },
    "kill": {"-a --all": Word("name them", "ps -q"), "-l --latest --cidfile": Word("name them", "ps -q")},
    "rm": {
        "-v --volumes": Word("a sandbox's own files go with it; named volumes stay"),
        "-l --link": Word("there are no links between sandboxes; leave it out", "rm NAME"),
        "-a --all --latest --cidfile --filter --depend -i --ignore": Word("name them", "ps -aq"),
        "-t --time": Word("stop it first", "stop --grace 10s NAME"),
    },
    "rmi": {
        "--no-prune": Word("what other images need stays anyway; leave it out", "rmi IMAGE"),
        "--platform": Word("an image of the store has one platform; leave it out", "rmi IMAGE"),
        "-a --all": Word("all that nothing uses", "prune --all"),
        "-i --ignore": Word("an error about one leaves the others done", "rmi IMAGE"),
    },
    "pull": {
        "-a --all-tags": Word("name the tags", "pull IMAGE"),
        "--disable-content-trust": Word("signatures are not checked; leave it out", "pull IMAGE"),
        "--tls-verify --cert-dir": Word(_TLS),
        "--creds --authfile": Word("log in first", "login REGISTRY"),
        "--arch --os --variant": Word("the platform is one word", "pull --platform linux/arm64 IMAGE"),
    },
    "push": {
        "-a --all-tags": Word("name the tags", "push IMAGE"),
        "--disable-content-trust": Word("nothing is signed; leave it out", "push IMAGE"),
        "--platform": Word("an image of the store has one platform; leave it out", "push IMAGE"),
        "--tls-verify --cert-dir": Word(_TLS),
        "--creds --authfile": Word("log in first", "login REGISTRY"),
    },
    "save": {"--platform": Word("an image of the store has one platform; leave it out", "save IMAGE -o FILE")},
    "load": {"--platform": Word("what runs here is taken; leave it out", "load FILE")},
    "history": {
        "-H --human": Word("sizes are shown so anyway; bytes are in", "history --json IMAGE"),
        "--platform": Word("an image of the store has one platform; leave it out", "history IMAGE"),
    },
    "inspect": {
        "-s --size": Word("what an image takes is in", "df"),
        "--platform": Word("an image of the store has one platform; leave it out", "inspect IMAGE"),
        "-l --latest": Word("name it", "ps --all"),
    },
    "search": {
        "-f --filter": Word(_FILTER, "search --local --json TEXT"),
        "--format": Word(_FORMAT, "search --local --json TEXT"),
        "--limit --no-trunc --list-tags": Word("the store alone is searched", "search --local TEXT"),
    },
    "info": {"-f --format": Word(_FORMAT, "info --json")},
    "version": {"-f --format": Word(_FORMAT, "version --json")},
    "df": {"-v --verbose": Word("each image has a line anyway; leave it out", "df"), "--format": Word(_FORMAT, "df --json")},
    "prune": {
        "--volumes": Word("named volumes that no sandbox has go with", "volume prune"),
        "--external --build": Word("what no image needs goes anyway", "prune"),
    },
    "cp": {
        "-a --archive": Word("modes and times are copied anyway, the owner is who copies; leave it out", "cp NAME:/there here"),
        "-L --follow-link": Word("the source itself is followed anyway; leave it out", "cp NAME:/there here"),
        "--overwrite --pause": Word("leave it out", "cp NAME:/there here"),
    },
    "diff": {"-l --latest": Word("name it", "diff NAME")},
    "top": {"-l --latest": Word("name it", "top NAME")},
    "stats": {
        "-a --all": Word("what has ended takes nothing; leave it out", "stats"),
        "--no-trunc --no-reset -i --interval -l --latest": Word("leave it out", "stats"),
    },
    "start": {
        "-a --attach --sig-proxy": Word("start it, then attach to it", "attach NAME"),
        "-i --interactive": Word("if it was made with create -i or run -di, start it, then attach to it", "attach NAME"),
        "--checkpoint --checkpoint-dir": Word("there are no checkpoints; files alone are kept by", "snapshot NAME IMAGE"),
        "--detach-keys": _DETACH,
        "--filter -l --latest": Word("name them", "ps -aq"),
    },
    "restart": {
        "-s --signal": Word("the stop signal is set at the start; any other is sent with", "kill -s HUP NAME"),
        "-a --all --running --filter --cidfile -l --latest": Word("name them", "ps -q"),
    },
    "update": {
        "--blkio-weight": Word("the share of a disk is", "update --io-weight 100 NAME"),
        "--cpu-period --cpu-quota": Word("quota and period are one number of cores", "update --cpus 1.5 NAME"),
        "--cpu-rt-period --cpu-rt-runtime": Word("cgroup v2 has no real-time budgets"),
        "-c --cpu-shares": Word("shares are weights of 1 to 10000 here, 100 by default", "update --cpu-weight 100 NAME"),
        "--kernel-memory": Word("cgroup v2 counts the kernel's memory with the rest", "update --memory 4G NAME"),
        "--memory-reservation": Word("memory that is protected, or from which on it is slowed down", "update --memory-low 1G NAME"),
        "--memory-swappiness": Word("cgroup v2 has none; swap itself can be limited", "update --memory 4G --memory-swap 4G NAME"),
        "--timeout --idle-timeout": Word("it is fixed at the start; what can be moved while it runs is", "update --ttl 1h NAME"),
    },
    "volume": {
        "-d --driver --availability --scope --type": Word("there are no drivers; a named volume is a directory", "volume create NAME"),
        "-o --opt": Word("a volume is a directory on dockless's own disk; other places are bound", "run -v /on/the/host:/inside IMAGE"),
        "-a --all": Word("all that no sandbox has go anyway; leave it out", "volume prune"),
        "--cluster --group --limit-bytes --required-bytes --secret --sharing --topology-preferred --topology-required": Word(_SERVICES),
    },
    "network": {
        "-d --driver --ipam-driver --ipam-opt --scope": Word("there are no drivers; it is a bridge of the host", "network create NAME"),
        "-o --opt": Word("what can be said of a network has options of its own", "network create --mtu 9000 NAME"),
        "--ip-range --aux-address": Word("a whole subnet is given out; leave it out", "network create --subnet 10.20.0.0/24 NAME"),
        "--ipv4 --ipv6": Word("a subnet of each kind is chosen; or name them", "network create --subnet fd00:20::/64 NAME"),
        "--attachable --ingress --config-from --config-only": Word(_SERVICES),
        "--link": Word(_LINKS, "network connect --alias db NAME SANDBOX"),
        "--link-local-ip": Word("an address is one of the network's subnet", "network connect --ip 10.20.0.5 NAME SANDBOX"),
        "--driver-opt": Word("there are no drivers; leave it out", "network connect NAME SANDBOX"),
        "--gw-priority": Word("the first network that leads out is the default route; leave it out", "network connect NAME SANDBOX"),
        "--dns --disable-dns --route --interface-name --no-trunc -v --verbose --ignore": Word("leave it out", "network ls"),
    },
    "exec": {
        "--detach-keys": _DETACH,
        "--privileged --preserve-fds": Word("what enters has the sandbox's own rights, and no other file open", "exec NAME -- COMMAND"),
        "-l --latest --cidfile --no-session --preserve-fd": Word("name it", "exec NAME -- COMMAND"),
    },
    "attach": {
        "--no-stdin": Word("to see and not to type", "logs -f NAME"),
        "-l --latest": Word("name it", "attach NAME"),
    },
    "commit": {
        "-p --pause": Word("it is paused meanwhile anyway; the opposite is", "commit --no-pause NAME IMAGE"),
        "-f --format": Word("the image has the OCI format; a docker archive comes from", "save IMAGE -o FILE"),
    },
    "events": {
        "--no-trunc --stream": Word("leave it out", "events"),
    },
    "wait": {
        "-i --interval": Word("nothing is polled", "wait NAME"),
        "-l --latest": Word("name it", "wait NAME"),
    },
}  # fmt: skip


_SWITCHES = "itdPq"
"""Letters of ``docker run`` that take no value: what follows one in the same word is another option."""


def flag(verb: str, name: str) -> Word | None:
    """What to use instead of Docker's option ``name``, with its dashes; None if Docker has no such option either, or dockless has it.
    Of letters in one word, as in ``-it``, what each of them means here."""
    table = _each(FLAGS.get(verb, {}))
    if name in table or name.startswith("--"):
        return table.get(name)
    found: dict[str, Word] = {}
    for letter in name[1:]:
        if f"-{letter}" in table:
            found[f"-{letter}"] = table[f"-{letter}"]
        if letter not in _SWITCHES and found:
            break
    if len(found) < 2:
        return next(iter(found.values()), None)
    return Word("; ".join(f"{letter}: {word.say}" for letter, word in found.items()), next(iter(found.values())).use)


def before(name: str) -> Word | None:
    """What Docker's option before the verb means here; None where Docker has none of that name."""
    table = _each(BEFORE)
    return table.get(name) or (table.get(name[:2]) if name[:1] == "-" and name[:2] != "--" else None)


def value(option: str, text: str) -> Word | None:
    """What Docker's value of an option of ours means here; None where Docker has none either."""
    rows = VALUES.get(option, {})
    table = _each(rows)
    joined = next((word for start, word in rows.items() if start.endswith(":") and text.startswith(start)), None)
    return table.get(text) or joined or rows.get("")


def _each(rows: dict[str, Word]) -> dict[str, Word]:
    return {one: word for names, word in rows.items() for one in names.split()}
