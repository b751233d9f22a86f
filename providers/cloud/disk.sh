#!/bin/sh
# Mounts a volume's filesystem where ranks find it. It runs as root. Other users may run only this program with sudo, so
# it trusts no argument. It formats only an empty disk, mounts without setuid programs and devices, and makes no folder
# where a user may have put a link. Needs util-linux, coreutils and, usually, e2fsprogs.
#
#   mount VOLUME UUID BYTES OURS TARGET DISK...
#       mounts the volume's filesystem at ALL/VOLUME, as large as its disk; and at TARGET (- for none), if that is free.
#       UUID is for a filesystem that has to be made. OURS: `yes` for a volume that was made empty for us.
#       DISK, one or more: serial:TEXT as the disk reports it, link:/dev/disk/... by udev, or name:/dev/xvdf by the
#       cloud. A name proves nothing, so UUID and BYTES have to match as well
#   unmount VOLUME
#       unmounts it everywhere, so that the disk can be detached
#
# Answers with "FLEETFORM-DISK 1", lines `key=value`, "FLEETFORM-END"; or `FLEETFORM-ERR CODE TEXT`, exit status 76.
set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
umask 022
trap '' HUP PIPE # whoever asked may go: what was begun is ended
ALL=/var/lib/fleetform/volumes
LOOK=$((16 * 1024 * 1024)) # bytes at the beginning of a disk that have to be zeros for it to be empty

refuse() { # CODE TEXT
  printf 'FLEETFORM-ERR %s %s\n' "$1" "$(printf %s "$2" | tr '\n' ' ')"
  exit 76
}
word() { # TEXT
  case $1 in '' | [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) refuse usage "not a word: $1" ;; esac
  [ ${#1} -le 128 ] || refuse usage 'a word is too long'
}
number() { case $1 in '' | *[!0-9]* | ????????????????*) refuse usage "no number: $1" ;; esac }

# ------------------------------------------------------------------------------------------------ disks

known() { # FILE or LINK: sets real, its numbers, sys and bytes, if it is a disk
  real=$(readlink -f -- "$1") && [ -b "$real" ] && both=$(stat -c '%t %T' -- "$real") || return 1
  numbers=$((0x${both% *})):$((0x${both#* })) sys=/sys/dev/block/$numbers
  { read -r bytes <"$sys/size"; } 2>/dev/null || return 1
  bytes=$((bytes * 512))
  [ "$bytes" -gt 0 ]
}
says() { # SYS: what the disk says of itself
  serial=''
  for file in "$1/serial" "$1/device/serial"; do
    { read -r serial _ <"$file" && [ "$serial" ] && return; } 2>/dev/null
  done
  return 1
}
find_disk() { # DISK...: sets what `known` does, and sure if the disk itself says which it is
  sure=yes
  for said; do
    case $said in
    serial:*)
      for dir in /sys/block/*; do
        if says "$dir" && [ "$serial" = "${said#*:}" ] && known "/dev/${dir##*/}"; then return; fi
      done
      for link in /dev/disk/by-id/*; do
        case $link in *[_-]"${said#*:}") if known "$link"; then return; fi ;; esac
      done
      ;;
    link:*) if known "${said#*:}"; then return; fi ;;
    esac
  done
  sure=''
  for said; do
    # A disk that reports another identity is another disk.
    case $said in name:*) if known "${said#*:}" && ! says "$sys"; then return; fi ;; esac
  done
  return 1
}
wanted() { # DISK...
  for said; do
    case $said in
    serial:*) word "${said#*:}" ;;
    link:/dev/disk/*) word "$(printf %s "${said#link:/dev/disk/}" | tr -d /)" ;;
    name:/dev/*) word "${said#name:/dev/}" ;;
    *) refuse usage "no disk: $said" ;;
    esac
    case $said in *..*) refuse usage "no disk: $said" ;; esac
  done
  for wait in 0.1 0.2 0.5 1 2 -; do
    if find_disk "$@"; then break; fi
    [ "$wait" != - ] || refuse absent "none of $* is there"
    sleep "$wait"
  done
  [ ! -e "$sys/partition" ] || refuse kind "$real is a part of a disk"
  { read -r fixed <"$sys/ro" && [ "$fixed" = 0 ]; } || refuse kind "$real cannot be written"
}
look() { # sets type and uuid; none if nobody knows what is there, or nothing is
  type='' uuid=''
  found=$(blkid -p -o export -- "$real" 2>/dev/null </dev/null) || found=''
  type=$(printf '%s\n' "$found" | sed -n 's/^TYPE=//p') uuid=$(printf '%s\n' "$found" | sed -n 's/^UUID=//p')
  case $found in *PTTYPE=*) refuse kind "$real has partitions" ;; esac
}
zeros() { # FIRST COUNT: whether these MiB of the disk are there, and nothing but zeros
  rest=$({ { dd if="$real" bs=1M skip="$1" count="$2" || echo broken; } | tr -d '\0' | head -c 1 | wc -c; } 2>/dev/null)
  [ "$rest" -eq 0 ]
}
empty() { # as far as can be told; whatever is not understood is somebody's data
  [ -z "$type" ] && [ -z "$(wipefs --no-act --parsable -- "$real" 2>&1)" ] || return 1
  [ "$bytes" -ge "$LOOK" ] && zeros 0 16 && zeros $((bytes / 1048576 - 1)) 2 || return 1
  for holder in "$sys"/holders/* "$sys"/*/partition; do [ ! -e "$holder" ] || return 1; done
}

# ----------------------------------------------------------------------------------------------- mounts

mounts() { # NUMBERS: where a disk is mounted, the last one first
  while read -r _ _ which _ where _; do [ "$which" != "$1" ] || echo "$where"; done </proc/self/mountinfo | tac
}
at() { # FOLDER: sets there to the numbers of what is mounted there; empty for nothing
  there=''
  while read -r _ _ which _ where _; do [ "$where" != "$1" ] || there=$which; done </proc/self/mountinfo
}
make() { # the filesystem, if there is none
  look
  begun=$ALL/.$volume.making # from before it is made until it is there: then half of one may be
  if [ -z "$type" ]; then
    if ! { [ "$sure" ] && [ -e "$begun" ]; } && ! empty; then
      refuse data "$real has no filesystem that is known here, and is not empty"
    fi
    if [ -z "$sure" ] && [ "$bytes" != "$wants" ]; then refuse stranger "$real has $bytes bytes"; fi
    command -v mkfs.ext4 >/dev/null || refuse tools 'mkfs.ext4 (e2fsprogs) is needed'
    echo "$id" >"$begun" && sync "$begun" || refuse unwritable "$ALL"
    said=$(mkfs.ext4 -q -F -m 0 -U "$id" -E "nodiscard,root_owner=$owner" -- "$real" 2>&1 </dev/null) ||
      refuse fault "mkfs.ext4: $said"
    sync
    look
  fi
  case $type in ext[234] | xfs) ;; *) refuse kind "$real has a filesystem of the kind ${type:-(none)}" ;; esac
  [ "$sure" ] || [ "$uuid" = "$id" ] || { [ "$ours" = no ] && [ "$bytes" = "$wants" ]; } ||
    refuse stranger "$real has the filesystem $uuid"
}
show() { # mounts it
  at "$folder"
  if [ "$there" ] && [ "$there" != "$numbers" ]; then
    [ ! -e "/sys/dev/block/$there" ] || refuse stranger "another disk is mounted at $folder"
    umount -l "$folder" || refuse busy "what was at $folder cannot be unmounted" # a disk that was taken away
    show
    return
  fi
  [ -z "$there" ] || return 0
  { command exec 8>>"$ALL/.lock"; } 2>/dev/null || refuse unwritable "$ALL"
  flock -w 50 8 || refuse busy "somebody else works on $ALL"
  at "$ALL" # a mount of its own: ranks that run see what is unmounted here, and do not hold it
  [ "$there" ] || { mount --bind "$ALL" "$ALL" && mount --make-shared "$ALL"; } || refuse fault "$ALL cannot be mounted"
  exec 8>&-
  mkdir -p "$folder" || refuse unwritable "$ALL"
  chmod 700 "$folder" # nobody writes there while it is not mounted
  said=$(mount -t "$type" -o nosuid,nodev -- "$real" "$folder" 2>&1) || refuse fault "$said"
  if [ -e "$begun" ]; then
    rmdir "$folder/lost+found" 2>/dev/null # many programs want an empty folder; e2fsck makes it when it needs it
    rm -f "$begun"
  fi
}
grow() { # to the size of its disk
  case $type in
  ext[234]) said=$(resize2fs "$real" 2>&1 </dev/null) ;;
  xfs) said=$(xfs_growfs -d "$folder" 2>&1 </dev/null) ;;
  esac && return
  [ "$ours" = no ] || refuse fault "the filesystem does not grow: $said"
}
target() { # TARGET: for users who may mount nothing themselves
  case $1/ in
  /etc/* | /usr/* | /bin/* | /sbin/* | /lib*/* | /boot/* | /dev/* | /proc/* | /sys/* | /run/* | /var/* | /tmp/*) return ;;
  *//* | */./* | */../* | [!/]*) return ;;
  esac
  path=''
  rest=${1#/}/
  while [ "$rest" ]; do
    path=$path/${rest%%/*} rest=${rest#*/}
    [ ! -L "$path" ] || return 0
    if [ ! -e "$path" ]; then mkdir -m 755 "$path" || return 0; fi
    # A user who may change a folder may put a link into it.
    case $(stat -c '%F %u %A' -- "$path") in directory\ 0\ d????-??-?) ;; *) return ;; esac
  done
  # As the runner does it. If that works, the mount need not be visible to others.
  if setpriv --reuid="${owner%:*}" --regid="${owner#*:}" --clear-groups \
    unshare --user --map-current-user --keep-caps --mount mount --bind "$folder" "$1" 2>/dev/null 9>&-; then return; fi
  at "$1"
  [ -z "$there" ] && [ -z "$(ls -A -- "$1")" ] || return 0
  mount --bind "$folder" "$1" 2>/dev/null
  return 0
}
unmount() {
  at "$folder"
  [ "$there" ] || return 0
  numbers=$there
  device=$(readlink "/sys/dev/block/$numbers") && device=${device##*/} || device=''
  for where in $(mounts "$numbers"); do
    if said=$(umount -- "$where" 2>&1); then continue; fi
    [ "$device" ] || { umount -l -- "$where" && continue; } # it was taken away
    refuse busy "$said"
  done
  [ "$device" ] || return 0
  # A process that is just ending may have it in its own namespace.
  for wait in 0.1 0.2 0.5 1 1 -; do
    [ -e "/sys/fs/ext4/$device" ] || [ -e "/sys/fs/xfs/$device" ] || return 0
    [ "$wait" != - ] || refuse busy "something that runs there still has $device mounted"
    sleep "$wait"
  done
}

# ------------------------------------------------------------------------------------------ the commands

[ "$(id -u)" -eq 0 ] || refuse usage 'only root can mount'
[ $# -ge 2 ] || refuse usage 'mount | unmount'
verb=$1 volume=$2 owner=${SUDO_UID:-0}:${SUDO_GID:-0}
word "$volume"
folder=$ALL/$volume
for tool in blkid wipefs flock stat dd mount umount; do
  command -v "$tool" >/dev/null || refuse tools "$tool is needed"
done
mkdir -p "$ALL" 2>/dev/null && [ -O "$ALL" ] && chmod 755 "$ALL" || refuse unwritable "$ALL"
{ command exec 9>>"$ALL/.$volume.lock"; } 2>/dev/null || refuse unwritable "$ALL"
flock -w 50 9 || refuse busy "somebody else works on $volume"
case $verb-$# in
mount-[0-6]) refuse usage 'mount needs more arguments' ;;
mount-*)
  id=$3 wants=$4 ours=$5 target=$6
  shift 6
  case $id in ????????-????-????-????-????????????) ;; *) refuse usage "no UUID: $id" ;; esac
  word "$id"
  number "$wants"
  case $ours in yes | no) ;; *) refuse usage "no answer: $ours" ;; esac
  wanted "$@"
  make
  show
  grow
  [ "$target" = - ] || target "$target"
  printf 'FLEETFORM-DISK 1\nfolder=%s\nbytes=%s\nFLEETFORM-END\n' "$folder" "$bytes"
  ;;
unmount-2)
  unmount
  rm -f "$ALL/.$volume.making"
  rmdir "$folder" 2>/dev/null
  printf 'FLEETFORM-DISK 1\nFLEETFORM-END\n'
  ;;
*) refuse usage "$verb" ;;
esac
