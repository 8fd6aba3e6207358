#!/usr/bin/env bash
# The guest's unchanging part, built once and kept in the cache: a kernel, an initramfs and a root disk.
#
#   tests/vm/base.sh DIR      leaves DIR/vmlinuz, DIR/initrd, DIR/root.img; does nothing when they are there
#
# mmdebstrap works for root and, through a user namespace, for a user with a range in /etc/subuid. Nothing is installed on this machine:
# the kernel comes from the guest's own mirror as a package and is only unpacked.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=$1
suite=${DOCKLESS_VM_SUITE:-bookworm}
packages=python3,uidmap,busybox-static,procps,iproute2,nftables,util-linux,mount,e2fsprogs,xfsprogs,kmod,strace,passt
# For the guest that systemd runs: its users' managers come through PAM, and their bus is asked for scopes.
packages=$packages,systemd,systemd-sysv,libpam-systemd,dbus-user-session
# Loaded by the initramfs, dependencies first. What the kernel has built in, or does not have at all, is passed over.
modules="virtio_pci virtio_blk ext4 xfs quota_v2 overlay veth bridge nf_tables nf_nat nft_chain_nat nft_masq nft_nat nft_ct nft_meta_bridge nft_fib_inet nft_reject_inet nft_log nft_limit nf_log_syslog nf_conntrack_netlink tun dummy loop"

if [ -s "$out/root.img" ] && [ -s "$out/initrd" ] && [ -s "$out/vmlinuz" ]; then exit 0; fi

for program in mmdebstrap mke2fs dpkg-deb python3; do
  if ! PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null; then
    echo "test-vm: $program is missing: apt-get install mmdebstrap e2fsprogs qemu-system-x86 uidmap" >&2
    exit 2
  fi
done
export PATH=$PATH:/usr/sbin:/sbin

work=$(mktemp -d "${TMPDIR:-/var/tmp}/dockless-vm.XXXXXX")
as_root=()
[ "$(id -u)" = 0 ] || as_root=(unshare --map-root-user --map-auto)
trap '"${as_root[@]}" rm -rf "$work"' EXIT
mkdir -p "$out"

echo "test-vm: building the guest's root ($suite) in $out, once"
export TMPDIR=${TMPDIR:-/var/tmp}
mmdebstrap --quiet --variant=apt --include="$packages" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='set -e; chroot "$1" sh -c "cd /tmp && apt-get -qq download \$(apt-cache depends linux-image-cloud-\$(dpkg --print-architecture) | sed -n \"s/.*Depends: \\(linux-image-.*\\)/\\1/p\" | head -n 1) && mv linux-image-*.deb linux.deb"' \
  --customize-hook="copy-out /tmp/linux.deb /bin/busybox $work" \
  --customize-hook='rm -f "$1"/tmp/linux*' \
  --customize-hook="copy-in $here/guest-init $here/guest-service /sbin" \
  --customize-hook="copy-in $here/guest.service /etc/systemd/system" \
  --customize-hook='chroot "$1" sh -c "systemctl --quiet enable guest.service && systemctl --quiet mask getty.target systemd-logind-varlink.socket apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer"' \
  "$suite" "$work/root.tar"

echo "test-vm: kernel and initramfs"
dpkg-deb -x "$work/linux.deb" "$work/linux"
cp "$work"/linux/boot/vmlinuz-* "$out/vmlinuz.new"
initrd=$work/initrd
mkdir -p "$initrd"/{bin,modules,proc,sys,dev,root}
cp "$work/busybox" "$initrd/bin/busybox"
cp "$here/initramfs-init" "$initrd/init"
chmod 755 "$initrd/init"
python3 - "$work/linux" "$initrd/modules" $modules <<'PYTHON'
"""Copy modules and what they depend on, numbered in the order in which they must be loaded."""
import pathlib, re, shutil, sys

tree, target, wanted = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
files = {file.name.split(".ko")[0].replace("-", "_"): file for file in tree.rglob("*.ko*")}
order = []


def need(name):
    if name in files and name not in order:
        found = re.search(rb"\0depends=([^\0]*)\0", files[name].read_bytes())
        for other in (found[1].decode() if found else "").split(","):
            need(other.replace("-", "_"))
        order.append(name)


for name in wanted:
    need(name)
for number, name in enumerate(order):
    shutil.copy(files[name], target / f"{number:03d}-{name}.ko")
PYTHON
(cd "$initrd" && find . | "$work/busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$out/initrd.new"

echo "test-vm: root disk"
mkdir "$work/root"
"${as_root[@]}" sh -eu -c '
  tar -xf "$1/root.tar" -C "$1/root" --numeric-owner --exclude="./dev/*" # a user may not make nodes; the guest has devtmpfs
  chmod 755 "$1/root" "$1/root/sbin/guest-init" "$1/root/sbin/guest-service"
  truncate -s 1200M "$2"
  mke2fs -q -F -t ext4 -O ^has_journal -d "$1/root" "$2"
' sh "$work" "$out/root.img.new"
for file in vmlinuz initrd root.img; do mv "$out/$file.new" "$out/$file"; done
