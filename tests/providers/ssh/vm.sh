#!/bin/sh
# Makes what the virtual machine of test_systemd.py is booted from: a small Debian, all of which will be in its memory.
#
#   vm.sh FOLDER [SUITE]       FOLDER/kernel, FOLDER/system, and keys
#
# Needs root, debootstrap, busybox, openssh-client, and an archive of Debian's (MIRROR) to reach.
set -eu
folder=$1 suite=${2:-bookworm} root=$1/root
mkdir -p "$folder"
cd "$folder"
folder=$PWD root=$PWD/root
packages=systemd-sysv,dbus,libpam-systemd,openssh-server,iproute2,procps,kmod
debootstrap --variant=minbase --include="$packages" "$suite" "$root" "${MIRROR:-http://deb.debian.org/debian}"
cp /etc/resolv.conf "$root/etc/"
# shellcheck disable=SC2016  # the inner shell's variable
chroot "$root" sh -ceu '
  kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n "s/.*Depends: \(linux-image-[^ ]*\).*/\1/p")
  cd /tmp && apt-get download "$kernel" && dpkg -x linux-image-*.deb /tmp/kernel
'
mv "$root"/tmp/kernel/boot/vmlinuz-* kernel
for modules in "$root"/tmp/kernel/lib/modules/[0-9]* "$root"/tmp/kernel/usr/lib/modules/[0-9]*; do
  [ ! -d "$modules" ] || version=${modules##*/}
done
mkdir -p "$root/lib/modules/$version"
find "$root/tmp/kernel" \( -name failover.ko\* -o -name net_failover.ko\* -o -name virtio\*.ko\* \) \
  -exec cp -t "$root/lib/modules/$version" {} +
chroot "$root" depmod "$version"
rm -rf "$root"/tmp/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/locale

rm -f login login.pub "$root"/etc/ssh/ssh_host_*
ssh-keygen -q -t ed25519 -N '' -C '' -f login
ssh-keygen -q -t ed25519 -N '' -C '' -f "$root/etc/ssh/ssh_host_ed25519_key"
cp "$root/etc/ssh/ssh_host_ed25519_key.pub" host_key.pub
chroot "$root" useradd -m -s /bin/bash -u 1500 worker
chroot "$root" useradd -m -s /bin/bash -u 1501 visitor
for home in root home/worker home/visitor; do
  mkdir -p "$root/$home/.ssh"
  chmod 700 "$root/$home/.ssh"
  cp login.pub "$root/$home/.ssh/authorized_keys"
  chown -R --reference="$root/$home" "$root/$home/.ssh"
done
mkdir -p "$root/var/lib/systemd/linger" "$root/etc/systemd/logind.conf.d"
true >"$root/var/lib/systemd/linger/worker"
printf '[Login]\nKillUserProcesses=yes\n' >"$root/etc/systemd/logind.conf.d/strict.conf"
echo vm >"$root/etc/hostname"
cat >"$root/etc/systemd/system/net.service" <<'UNIT'
[Unit]
DefaultDependencies=no
Before=network.target ssh.service
[Service]
Type=oneshot
RemainAfterExit=yes
StandardOutput=journal+console
ExecStart=/bin/sh -cx 'modprobe virtio_pci; modprobe virtio_net; until ip link set eth0 up; do sleep 0.2; done; ip link set lo up; ip addr add 10.0.2.15/24 dev eth0'
[Install]
WantedBy=sysinit.target
UNIT
chroot "$root" systemctl -q enable net.service ssh.service
chroot "$root" systemctl -q mask systemd-udev-trigger.service systemd-timesyncd.service \
  apt-daily.timer apt-daily-upgrade.timer serial-getty@ttyS0.service
(cd "$root" && find . -xdev | busybox cpio -o -H newc) >system
rm -rf "$root"
