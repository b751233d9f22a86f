# shellcheck shell=sh disable=SC2154  # root, usual, old, wrong: by find_root (root.sh)
# What a host has, and whether it is fit: one round trip, one line `name=value` each. Writes one small file into
# the state folder, and takes it away again; likewise an empty control group. It follows `root.sh`, `confine.sh` and `health.sh`.
# Arguments: the state folder, or nothing for the usual one; the id of the node that the host should be, or nothing.
LC_ALL=C
export LC_ALL
umask 077
find_root "$1"
say() { printf '%s=%s\n' "$1" "$2"; }
first() { { read -r line <"$1" && say "$2" "$line"; } 2>/dev/null; } # FILE NAME

echo FLEETFORM-PROBE
say root "$root"
[ -z "$old" ] || say old "$usual"
cleaned "$root"
if [ "$by" ] && may_exclude "$root"; then
  # The command that makes the folder excludes it; where that failed, this look tells. A look that only reads changes
  # nothing there.
  if [ ! -d "$root" ] || { [ -n "${FLEETFORM_EPOCH-}" ] && exclude "$root"; }; then by=''; fi
fi
[ -z "$by" ] || say cleaned "$by"
first /proc/sys/kernel/hostname host
first /proc/sys/kernel/random/boot_id boot_id
say now "$(date +%s.%N)"
for file in /proc/self/status /proc/meminfo; do # sed would take longer than to read the few lines here
  while read -r label value _; do
    case $label in
    Cpus_allowed_list:) say cpus "$value" && break ;;
    MemTotal:) say memory_kib "$value" ;;
    MemAvailable:) say memory_free_kib "$value" && break ;;
    esac
  done <"$file"
done
for tool in sh env flock setsid stat head tail timeout taskset sha256sum unshare podman docker python3 mpirun \
  nvidia-smi rocm-smi systemd-tmpfiles; do
  ! command -v "$tool" >/dev/null 2>&1 || say tool "$tool"
done
# systemd can be configured to end the processes of a login. Those of root stay; other users have to linger.
if booted && [ "$(id -u)" != 0 ] && grep -qs '/session-[^/]*\.scope' /proc/self/cgroup && ! lingers; then
  ends=$(timeout -k 1 10 loginctl show-user --property=KillUserProcesses --value 2>/dev/null)
  [ "$ends" != yes ] || say ends "$(id -un)"
fi
can() { # sets can to what works here, of `hard` and the container runtimes. A client alone runs nothing: docker's asks
  # its engine. All of it takes longer than the rest of the look together
  can=''
  ! able || can=hard
  for runtime in $clients; do
    ! timeout -k 1 10 "$runtime" version >/dev/null 2>&1 || can="$can $runtime"
  done
}
clients=''
for runtime in podman docker; do ! command -v "$runtime" >/dev/null || clients="$clients $runtime"; done
read -r up _ </proc/uptime
read -r boot </proc/sys/kernel/random/boot_id
# Tries on a node are repeated after ten minutes if they worked, after one if they failed.
tried='' last='' known=''
[ -z "${2-}" ] || { IFS=: read -r tried last known can <"$root/$2/can"; } 2>/dev/null
age=$((${up%.*} - ${last:-0})) anew=''
if [ "$tried:$known" != "$boot:$clients" ] || [ "$age" -lt 0 ] || [ "$age" -ge 600 ] ||
  { [ "$age" -ge 60 ] && [ "$can" != "hard$clients" ]; }; then
  can
  anew=1
  [ -z "${2-}" ] || { echo "$boot:${up%.*}:$clients:$can" >"$root/$2/can"; } 2>/dev/null
fi
for one in $can; do say can "$one"; done
# The address of this connection on this host, and all others; those of a node are known.
address=${SSH_CONNECTION-}
address=${address% *}
say address "${address##* }"
inner() { # INTERFACE: whether it is a network within this host, whose addresses mean another machine on each host
  case $1 in
  docker0 | docker_gwbridge | podman[0-9]* | cni[0-9]* | cni-* | nerdctl[0-9]* | cbr0) ;;
  virbr[0-9]* | lxcbr[0-9]* | lxdbr[0-9]* | incusbr[0-9]* | mpqemubr[0-9]*) ;;
  br-*[!0-9a-f]*) return 1 ;; # as br-ex; docker's have twelve digits
  br-????????????) ;;
  kube-ipvs0 | nodelocaldns | vboxnet[0-9]* | vmnet[0-9]*) return 0 ;; # no bridges
  *) return 1 ;;
  esac
  # The name is one for bridges of containers and virtual machines. It is a real network's all the same if it is no
  # bridge, or if one of its ports leads out: a card, or what is built on one, as a VLAN.
  [ -e "/sys/class/net/$1" ] || return 0
  [ -d "/sys/class/net/$1/bridge" ] || return 1
  for port in "/sys/class/net/$1/brif"/*; do
    for out in "/sys/class/net/${port##*/}/device" "/sys/class/net/${port##*/}"/lower_*; do
      [ ! -e "$out" ] || return 1
    done
  done
}
[ -n "${2-}" ] || { ip -o addr show scope global | while read -r _ interface _ address _; do
  inner "${interface%@*}" || say addresses "${address%%/*}"
done; } 2>/dev/null

# The state folder, or the folder in which it would be made.
at=$root
while [ ! -d "$at" ] && [ "$at" != / ]; do
  at=${at%/*}
  at=${at:-/}
done
{ stat -f -c 'block=%S
free=%a
total=%b
files=%c
files_free=%d' "$at"; } 2>/dev/null
declare=''
[ "$1" ] || declare=": declare \`root\`, a folder on a disk of the host, in the options of its backend"
if [ "$wrong" ]; then
  say state "$wrong$declare"
elif [ -L "$root" ] || { [ -e "$root" ] && [ ! -O "$root" ]; }; then
  say state "$root is not this user's own folder"
else
  # A node keeps the file that is written with each look; to run it or to leave nothing behind takes a command more.
  new=$at/.fleetform-probe.$$ kept=''
  [ -n "$anew" ] || [ ! -d "$root/$2" ] || kept=1 new=$root/$2/written
  if [ -z "$kept" ]; then # where others may write it could be theirs, or a link to a file of this user
    { [ ! -e "$new" ] && [ ! -L "$new" ]; } || rm -f "$new" 2>/dev/null
    set -C
  fi
  # shellcheck disable=SC2016  # its own $0: it takes itself away
  if printf '#!/bin/sh\nexec rm -f -- "$0"\n' 2>/dev/null >"$new"; then
    if [ -n "$anew" ] && ! { chmod 700 "$new" && "$new"; } 2>/dev/null; then
      say state "nothing can be executed in $at (noexec)$declare"
      [ -z "${2-}" ] || rm -f "$root/$2/can" # to be tried with the next look, too
    fi
  elif [ -e "$new" ] || [ -w "$at" ]; then
    say state "the disk of $at is full"
  else
    say state "$at cannot be written$declare"
  fi
  set +C
  [ "$kept" ] || [ ! -e "$new" ] || rm -f "$new"
fi
first "$root/claim" claim
if [ -n "${2-}" ] && [ -d "$root/$2" ]; then
  # The boot at the last look.
  last=''
  { read -r last <"$root/$2/boot" && say last_boot "$last"; } 2>/dev/null
  [ "${last-}" = "$boot" ] || { echo "$boot" >"$root/$2/boot"; } 2>/dev/null
fi

# A broken driver may hang; then nothing is known of the GPUs. A driver may not know the newest fields.
asked=index,uuid,name,memory.total,memory.used
if command -v nvidia-smi >/dev/null 2>&1; then
  for fields in $asked,mig.mode.current $asked; do
    said=$(timeout -k 1 10 nvidia-smi "--query-gpu=$fields" --format=csv,noheader,nounits 2>&1)
    code=$?
    case $said in *'not a valid field'*) ;; *) break ;; esac
  done
  case $said in
  *Enabled*) # without their list, the GPUs in MIG mode would seem to be gone
    listed=$(timeout -k 1 10 nvidia-smi -L 2>/dev/null)
    second=$?
    [ "$code" != 0 ] || code=$second
    printf '%s\n' "$listed" | sed 's/^/instance=/'
    ;;
  esac
  say nvidia_code "$code"
  printf '%s\n' "$said" | sed 's/^/nvidia=/'
  case $code in 124 | 137) ;; *) gpu_health ;; esac
elif command -v rocm-smi >/dev/null 2>&1; then
  said=$(timeout -k 1 10 rocm-smi --showproductname --showmeminfo vram --showuniqueid --csv 2>&1)
  say rocm_code $?
  printf '%s\n' "$said" | sed 's/^/rocm=/'
  kernel_log
else
  for device in /dev/nvidia[0-9]*; do [ ! -e "$device" ] || say device "$device"; done
fi
rdma_health /sys/class/infiniband
first /proc/loadavg load
echo FLEETFORM-END
