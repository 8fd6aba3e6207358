#!/usr/bin/env bash
# Boots a small Debian with a real cgroup v2 tree in QEMU and runs the suite there, where nothing v2-related may skip.
#
#   tests/vm/run.sh [pytest arguments]     default: tests/integration tests/attacks tests/native
#
# DOCKLESS_VM_CACHE    where kernel, root disk and wheels are kept      (~/.cache/dockless-vm)
# DOCKLESS_VM_TIMEOUT  seconds until a hanging guest is ended           (1200)
# DOCKLESS_VM_AS       root, user, both, systemd, all, power, two-users (both)
# DOCKLESS_VM_CUTS     power: so many cuts of the guest's power         (12)
# DOCKLESS_WHEEL       test this wheel instead of one built from the tree
# DOCKLESS_VM_ACCEL    kvm or tcg instead of finding out
# DOCKLESS_VM_ALL      1: leave nothing out under emulation
#
# Root and user have a guest each, side by side, and under emulation the user two: a suite keeps one processor busy. Another is run by systemd, for
# the daemon as its service (guest-systemd, service_life.py): where it is asked for, since under emulation it takes longer than both. Three virtio
# disks: the root (changes are thrown away), the payload (wheel, dependencies, tests; read-only), an empty one for limits on io. The guest's console comes out
# here; its exit status comes back through a second serial port.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=${DOCKLESS_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dockless-vm}
limit=${DOCKLESS_VM_TIMEOUT:-1200}
python=$top/.venv/bin/python
export PATH=$PATH:/usr/sbin:/sbin PYTHONSAFEPATH=1
chosen=$#
if [ $# = 0 ]; then
  for folder in integration attacks native; do [ -z "$(find "$top/tests/$folder" -name 'test_*.py' 2>/dev/null)" ] || set -- "$@" "tests/$folder"; done
fi

if [ "$(uname -m)" != x86_64 ]; then
  echo "test-vm: the guest is x86-64 only so far; this machine is $(uname -m)" >&2
  exit 2
fi
for program in qemu-system-x86_64 mke2fs sha256sum; do
  if ! command -v "$program" >/dev/null; then
    echo "test-vm: $program is missing: apt-get install mmdebstrap e2fsprogs qemu-system-x86 uidmap" >&2
    exit 2
  fi
done

if [ ! -x "$python" ]; then
  echo "test-vm: no .venv here yet: make build" >&2
  exit 2
fi

key() { cat "$@" <(echo "${DOCKLESS_VM_SUITE:-bookworm}") | sha256sum | cut -c 1-16; }

# ---- the base and the dependencies: kept as long as what they are made from is the same --------------------------------------------------
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # two runs at once build one base
base=$cache/base-$(key "$here/base.sh" "$here/initramfs-init" "$here/guest-init" "$here/guest-service" "$here/guest.service")
"$here/base.sh" "$base"

deps=$cache/deps-$(key "$top/pyproject.toml" "$here/run.sh")
if [ ! -d "$deps" ]; then
  echo "test-vm: the guest's Python packages"
  "$python" - "$top/pyproject.toml" >"$base/requirements.txt" <<'PYTHON'
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
for line in project["dependencies"] + project["optional-dependencies"]["test"]:
    print(line.split(";")[0])  # the markers would be those of this Python, not the guest's
PYTHON
  rm -rf "$deps.new"
  platforms=()
  for glibc in 34 31 28 27 26 24 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
  PIP_DISABLE_PIP_VERSION_CHECK=1 "$python" -m pip install -qq --target "$deps.new" --only-binary=:all: --python-version 3.11 --implementation cp \
    "${platforms[@]}" --platform manylinux2014_x86_64 -r "$base/requirements.txt"
  mv "$deps.new" "$deps"
fi
touch "$base" "$deps"
find "$cache" -maxdepth 1 \( -name 'base-*' -o -name 'deps-*' \) -mtime +14 -exec rm -rf {} +
exec 9>&-

# ---- the machine ----------------------------------------------------------------------------------------------------------------------
machine=(qemu-system-x86_64 -machine q35 -smp 2 -m 2048 -nodefaults -display none -no-reboot -kernel "$base/vmlinuz" -initrd "$base/initrd")
kvm=(-accel kvm -cpu host)
tcg=(-accel "tcg,thread=multi" -cpu max)
kernel="console=ttyS0 quiet panic=-1 psi=1"

accelerator=${DOCKLESS_VM_ACCEL:-}
if [ -z "$accelerator" ]; then
  # Whether KVM works is only known by booting with it: nested or filtered, it can refuse a register or spin for ever.
  accelerator=tcg
  if [ -w /dev/kvm ] && timeout -k 1 10 "${machine[@]}" "${kvm[@]}" -serial stdio -append "$kernel dockless.probe" </dev/null 2>/dev/null |
    grep -q "DOCKLESS-VM-PROBE works"; then accelerator=kvm; fi
fi
case $accelerator in kvm) speed=("${kvm[@]}") ;; *) speed=("${tcg[@]}") ;; esac

# ---- the payload: wheel and tests of now ----------------------------------------------------------------------------------------------
work=$(mktemp -d "${TMPDIR:-/var/tmp}/dockless-vm.XXXXXX")
guests=()
trap '[ ${#guests[@]} = 0 ] || kill "${guests[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 143' TERM INT HUP
wheel=${DOCKLESS_WHEEL:-}
if [ -z "$wheel" ]; then
  "$python" -m pip wheel -qq --no-deps --no-build-isolation -w "$work/wheel" "$top"
  wheel=$(echo "$work"/wheel/dockless-*.whl)
fi
payload=$work/payload
mkdir -p "$payload/bin"
cp -a "$deps" "$payload/site"
"$python" -m zipfile -e "$wheel" "$payload/site"
find "$payload/site/dockless" -name dockless-launcher -exec chmod 755 {} +
printf '#!/bin/sh\nexec python3 -m dockless.cli "$@"\n' >"$payload/bin/dockless"
chmod 755 "$payload/bin/dockless"
cp -a "$top/tests" "$top/examples" "$top/pyproject.toml" "$top/setup.py" "$payload/"
mkdir "$payload/native" # sources, for the tests that read or compile them
cp -a "$top"/native/*.[ch] "$top/native/launcher" "$top/native/layer" "$payload/native/"
shared=${DOCKLESS_SHARED:-$top/../shared}
if [ -d "$shared/images" ]; then # sample images and hostile tars, where this checkout has them beside it
  mkdir "$payload/shared"
  for folder in images corpus; do [ ! -d "$shared/$folder" ] || cp -r --no-preserve=mode "$shared/$folder" "$payload/shared/"; done
fi
drivers=${XDG_CACHE_HOME:-$HOME/.cache}/dockless-tests # NVIDIA's control daemon, where a test of this machine's has fetched it
if [ -d "$drivers/nvidia-mps" ]; then
  mkdir "$payload/drivers"
  cp -a "$drivers/nvidia-mps" "$payload/drivers/"
fi
cp "$here/guest-tests" "$here/guest-systemd" "$payload/"
find "$payload/tests" "$payload/examples" -name __pycache__ -prune -exec rm -rf {} +
# Compiled here, where that is fast, if this Python is of the guest's version; it looks for another's files in vain.
"$python" -m compileall -q "$payload/site/dockless"
collect() { (cd "$payload" && env -u PYTHONDONTWRITEBYTECODE PYTHONPATH=site "$python" -m pytest -p no:cacheprovider --collect-only -q "$@"); }

# An emulated processor is six times slower. Then only those tests run that need a controller, a device filter, a disk or accounts of their own, and
# those of what an older kernel does in another way: overlays, mapped mounts, pidfds. The host's own run has all others; where that was root's, her guest
# leaves out what this machine has, too. What repeats itself does so less often.
rounds=()
more=()
arguments() { # root, user or user-2: to stand in the file of her arguments
  printf '%s\n' "${@:2}" >"$payload/arguments-$1"
}
if [ "${DOCKLESS_VM_AS:-}" = power ] || [ "${DOCKLESS_VM_AS:-}" = two-users ]; then
  : # stories of their own
elif [ "$accelerator" = tcg ] && [ "$chosen" = 0 ] && [ -z "${DOCKLESS_VM_ALL:-}" ]; then
  for name in root user; do
    lacking=()
    [ "$name$(id -u)" != root0 ] || lacking=(--lacking)
    mapfile -t needing < <({
      collect --needing cgroup2,device-filter,psi,virtio-disk,two-accounts "${lacking[@]}" "$@"
      collect --needing overlay,idmap tests/integration/test_sandbox_{mounts,root,namespaces,identity}.py
      collect tests/unit/test_pidfds.py
    } | sed -n 's/\(.*::[^[]*\).*/\1/p' | sort -u)
    [ "${#needing[@]}" != 0 ] || { echo "test-vm: no test was found that needs the guest" >&2; exit 1; }
    if [ "$name" = root ]; then
      arguments root "${needing[@]}"
    else # her tests take twice as long as root's: two guests share them
      mapfile -t every < <(printf '%s\n' "${needing[@]}" | sed -n 'p;n')
      mapfile -t other < <(printf '%s\n' "${needing[@]}" | sed -n 'n;p')
      arguments user "${every[@]}"
      arguments user-2 "${other[@]}"
      more=(user-2)
    fi
    echo "test-vm: emulated, so as $name only ${#needing[@]} tests that this host cannot answer for (DOCKLESS_VM_ALL=1 runs all)"
  done
  rounds=(DOCKLESS_STRESS_STARTS=40 DOCKLESS_TEST_ROUNDS=3)
else
  collect "$@" >/dev/null || true # what is wrong with the tests chosen is said in the guest
  for name in root user; do arguments "$name" "$@"; done
fi
printf '%s\n' "${rounds[@]}" >"$payload/environment"
chmod -R a+rX "$payload"
size=$(du -sm "$payload" | cut -f 1)
truncate -s "$((size + size / 3 + 32))M" "$work/payload.img"
mke2fs -q -F -t ext4 -O ^has_journal -E root_owner=0:0 -d "$payload" "$work/payload.img"

# ---- the run --------------------------------------------------------------------------------------------------------------------------
boot() { # root, user, user-2 or systemd: becomes the guest, which says everything in DIR/console and its exit status in DIR/status
  local place=$work/$1 root="file=$base/root.img,snapshot=on"
  # Its root disk keeps what was written over a reboot, at which QEMU ends.
  [ "$1" != systemd ] || { cp --sparse=always "$base/root.img" "$place/root.img" && root="file=$place/root.img,cache=unsafe"; }
  local guest=("${machine[@]}" "${speed[@]}" -serial stdio -serial "file:$place/status"
    -drive "$root,format=raw,if=virtio"
    -drive "file=$work/payload.img,format=raw,if=virtio,readonly=on"
    -drive "file=$place/scratch.img,format=raw,if=virtio,cache=unsafe"
    -append "$kernel dockless.as=$1 systemd.show_status=0")
  if [ "$1" = systemd ]; then
    timeout -k 5 "$limit" "${guest[@]}" </dev/null >>"$place/console" 2>&1 &
    trap 'kill $!; exit 143' TERM
    wait $! || true
    trap - TERM
    [ ! -s "$place/status" ] || return 0
  fi
  exec timeout -k 5 "$limit" "${guest[@]}" </dev/null >>"$place/console" 2>&1
}

if [ "${DOCKLESS_VM_AS:-}" = power ]; then
  echo "test-vm: booting ($accelerator), ${DOCKLESS_VM_CUTS:-12} power cuts"
  mkdir "$work/power"
  "$python" -P "$here/power_cut.py" "$work/power" --cuts "${DOCKLESS_VM_CUTS:-12}" --seed "${DOCKLESS_VM_SEED:-1}" -- \
    "${machine[@]}" "${speed[@]}" -append "$kernel dockless.as=POWER systemd.show_status=0" \
    -drive "file=$base/root.img,snapshot=on,format=raw,if=virtio" -drive "file=$work/payload.img,format=raw,if=virtio,readonly=on" &
  guests+=($!)
  wait $!
  exit
fi

case ${DOCKLESS_VM_AS:-both} in
all) names=(root user "${more[@]}" systemd) ;;
both) names=(root user "${more[@]}") ;;
user) names=(user "${more[@]}") ;;
*) names=("$DOCKLESS_VM_AS") ;;
esac
echo "test-vm: booting ($accelerator) as ${names[*]}, at most $limit s"
for name in "${names[@]}"; do
  mkdir "$work/$name"
  truncate -s 4G "$work/$name/scratch.img"
  mke2fs -q -F -t ext4 -E root_owner=0:0,lazy_itable_init=1 "$work/$name/scratch.img"
  : >"$work/$name/console"
  boot "$name" &
  guests+=($!)
  # The console as it comes: a run that is cut off has shown all it said.
  tail -n +1 -s 0.2 -f --pid=$! "$work/$name/console" | sed -u "s/\r//g; s/^/$name| /" &
done
wait

worst=0
for name in "${names[@]}"; do
  status=$(tr -dc 0-9 <"$work/$name/status" 2>/dev/null || true)
  if [ -z "$status" ]; then
    echo "test-vm: the guest for $name ended without a result, by a panic or after $limit s; its last lines:" >&2
    tail -n 40 "$work/$name/console" >&2
    status=1
  fi
  echo "test-vm: $name: exit status $status"
  [ "$status" -le "$worst" ] || worst=$status
done
echo "test-vm: $SECONDS s under $accelerator"
exit "$worst"
