#!/bin/sh
# The first process of one host, in namespaces of its own: builds its root folder and becomes its init.
#
#   init.sh FOLDER NAME
#
# FOLDER has: disk/ (a mounted, size-limited disk: what outlives a reboot), key, authorized_keys, hosts, sshd_config;
# and users/NAME with the keys that let in another user, files/ with what else is to be there, devices with its disks.
# /tmp and /run are lost at a reboot, and the boot id is new. What the machine around it keeps in the usual places
# is not to be seen: who forgets to send a file shall fail here as on a real host.
set -eu
folder=$1 name=$2 root=$1/root disk=$1/disk
mount --make-rprivate /
hostname "$name"
mkdir -p "$root" "$disk/upper" "$disk/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$disk/upper,workdir=$disk/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys" 2>/dev/null || mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755,size=64k dev "$root/dev"
for device in null zero full random urandom tty; do
  true >"$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "$root/dev/${number#*:}"; done
for lost in run tmp; do
  mkdir -p "$root/$lost"
  mount -t tmpfs -o mode=1777,size=16m "$lost" "$root/$lost"
done
chmod 755 "$root/run"
for own in root home work builds mnt srv opt var/tmp var/lib/containers; do
  mkdir -p "$root/$own" "$disk/own/$own"
  mount --bind "$disk/own/$own" "$root/$own"
done
chmod 700 "$root/root"
chmod 1777 "$root/var/tmp"
mkdir -p "$root/shared" # what all hosts see, as on a network's disk
mount --bind "$folder/../shared" "$root/shared"
if [ -e "$folder/../clock" ]; then # it is as late as that says, by what scripts ask
  true >"$root/run/clock"
  mount --bind "$folder/../clock" "$root/run/clock"
  cp "${0%/*}/date.sh" "$root/usr/local/bin/date"
fi
mkdir -p "$root/run/sshd" "$root/root/.ssh" "$root/home/worker/.ssh"
cat /proc/sys/kernel/random/uuid >"$folder/boot_id"
mount --bind "$folder/boot_id" "$root/proc/sys/kernel/random/boot_id"
if ! grep -q ^worker: "$root/etc/passwd"; then
  echo 'worker:x:1500:1500::/home/worker:/bin/sh' >>"$root/etc/passwd"
  echo 'worker:x:1500:' >>"$root/etc/group"
  echo 'worker:*:19000:0:99999:7:::' >>"$root/etc/shadow"
fi
for home in root home/worker; do cp "$folder/authorized_keys" "$root/$home/.ssh/"; done
chown -R 1500:1500 "$root/home/worker"
chmod 755 "$root/home/worker"
chmod 700 "$root/home/worker/.ssh" "$root/root/.ssh"
for keys in "$folder"/users/*; do # those that were asked for at its making
  [ -e "$keys" ] || continue
  user=${keys##*/} home=$root/home/${keys##*/}
  [ "$user" != root ] || home=$root/root
  if ! grep -q "^$user:" "$root/etc/passwd"; then
    echo "$user:x:47600:47600::/home/$user:/bin/sh" >>"$root/etc/passwd"
    echo "$user:x:47600:" >>"$root/etc/group"
    echo "$user:*:19000:0:99999:7:::" >>"$root/etc/shadow"
  fi
  mkdir -p "$home/.ssh"
  cp "$keys" "$home/.ssh/authorized_keys"
  [ "$user" = root ] || chown -R 47600:47600 "$home"
  chmod 755 "$home"
  chmod 700 "$home/.ssh"
done
[ ! -d "$folder/files" ] || cp -a "$folder/files/." "$root/"
[ ! -e "$folder/devices" ] || (cd "$root" && sh "$folder/devices")
cp "$folder/hosts" "$root/etc/hosts"
mkdir -p "$root/etc/ssh"
cp "$folder/key" "$root/etc/ssh/host_key"
chmod 600 "$root/etc/ssh/host_key"
cp "$folder/sshd_config" "$root/etc/ssh/sshd_config"
cd "$root"
mkdir -p .around
pivot_root . .around
cd /
umount -l /.around
command exec </dev/null >/run/sshd.log 2>&1
# Keeps sshd alive and reaps what lost its parent.
exec /bin/sh -c '/usr/sbin/sshd -D -e & while :; do wait; /bin/sleep 3600 & done' init
