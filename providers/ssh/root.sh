# shellcheck shell=sh disable=SC2034  # what its functions set is for the scripts that follow
# Finds this user's state folder. It precedes the scripts that need it.
#
# `find_root GIVEN` sets root and wrong, which is empty or says why root cannot be used; also usual, the folder for a
# host on which nothing is yet, and old, the default of earlier versions if the host's state is still there. GIVEN is
# the declared folder, or empty for the usual one: /var/lib/fleetform/node for root, and else $XDG_STATE_HOME/fleetform
# or ~/.local/state/fleetform. Where homes lie on a network's disk, the machine's id follows: hosts share homes, and two
# hosts must not share a state folder. A folder on such a disk has a file `host`, with the name of its host.
is_local() { # PATH: whether its disk is this host's own; unknown ones are not
  at=$1
  while [ ! -d "$at" ] && [ "$at" != / ]; do
    at=${at%/*}
    at=${at:-/}
  done
  case $(stat -f -c %t "$at" 2>/dev/null) in
  ef53 | 58465342 | 9123683e | 2fc12fc1 | ca451a4e) ;;         # ext, xfs, btrfs, zfs, bcachefs
  f2f52010 | 3153464a | 52654973 | 24051905 | f15f) ;;         # f2fs, jfs, reiserfs, ubifs, ecryptfs
  1021994 | 858458f6 | 794c7630 | 61756673) ;;                 # tmpfs, ramfs, overlay, aufs
  *) return 1 ;;
  esac
}
is_used() { # FOLDER: by a node or a volume of anybody
  [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] && { [ -e "$1/claim" ] || [ -d "$1/volumes" ]; } && ! is_copy "$1"
}
is_copy() { # FOLDER: whether a move makes it, and the folder that it moves still counts; sets was to that
  was='' token_of=''
  # Another folder may have come where that one was, and this one hold all there is.
  { read -r was && read -r token_of; } 2>/dev/null <"$1/moving" && [ -d "$was" ] && [ ! -L "$was" ] && [ -O "$was" ] &&
    [ "$token_of" ] && [ "$(cat "$was/moved" 2>/dev/null)" = "$token_of" ]
}
find_usual() { # sets usual and wrong
  wrong='' usual=/var/lib/fleetform/node
  if [ "${me:=$(id -u)}" != 0 ]; then
    case ${XDG_STATE_HOME-} in
    /*) usual=$XDG_STATE_HOME/fleetform ;;
    *)
      usual=${HOME-}/.local/state/fleetform
      [ -d "${HOME:-/nowhere}" ] || wrong="its user $(id -un) has no home folder"
      ;;
    esac
  fi
  if [ -z "$wrong" ] && ! is_local "$usual"; then
    machine=''
    for file in /etc/machine-id /var/lib/dbus/machine-id; do
      [ "$machine" ] || { read -r machine <"$file"; } 2>/dev/null || :
    done
    # systemd's own, where /etc cannot be written: no boot would find the folder of the one before.
    ! grep -qs ' /etc/machine-id tmpfs ' /proc/mounts || machine=anew
    case $machine in
    anew) wrong="$usual is on a network's disk, which other hosts may share, and this host has another /etc/machine-id after each boot" ;;
    *[!0-9a-f]* | '') wrong="$usual is on a network's disk, which other hosts may share, and this host has no /etc/machine-id" ;;
    *) usual=$usual/$machine ;;
    esac
  fi
}
find_root() { # GIVEN
  [ -z "${root_found-}" ] || return 0
  root_found=1 root=$1 wrong='' old=''
  if [ -z "$root" ]; then
    find_usual
    root=$usual old=/var/tmp/fleetform-${me:=$(id -u)} # the default of earlier versions
    if ! is_used "$old"; then old=''
    elif is_used "$usual"; then
      wrong="its state is in two folders, $usual and $old: move one away, or name one of them"
    else root=$old wrong=''; fi
    # Anybody may make a folder of that name; earlier versions had none that counted for a moment.
    [ -n "$old" ] || ! is_used "/var/tmp/fleetform-$me.moved" || is_used "$usual" ||
      wrong="/var/tmp/fleetform-$me was being moved, and that was cut short: take \`.moved\` from its name and move it again"
  fi
  ! is_copy "$root" || wrong="$root is a copy of $was, whose move was cut short: move it again, or remove $root"
  hostname='' here=''
  if { read -r hostname <"$root/host"; } 2>/dev/null; then
    { read -r here </proc/sys/kernel/hostname; } 2>/dev/null || :
    [ "$hostname" = "$here" ] ||
      wrong="$root is the folder of another host, $hostname: hosts that share a disk need a machine-id each; if $hostname was renamed, remove $root/host"
  fi
}
# Cleaners of old files: `cleaned FOLDER` sets by to the folder whose rule they would follow there, or to nothing.
# The longest path counts, as for systemd-tmpfiles; of two files with one name, the first.
cleaned() {
  by='' rule='' names=' ' lines=''
  real=$(cd -P -- "$1" 2>/dev/null && pwd) || real=$1
  set --
  for file in /etc/tmpfiles.d/*.conf /run/tmpfiles.d/*.conf /usr/local/lib/tmpfiles.d/*.conf /usr/lib/tmpfiles.d/*.conf; do
    case $names in *" ${file##*/} "*) continue ;; esac
    names="$names${file##*/} "
    [ ! -f "$file" ] || set -- "$@" "$file"
  done
  [ $# -eq 0 ] || lines=$(grep -hs '^[dDevqQCx][!+=~^$-]*[[:space:]]' "$@")
  while read -r type path _ _ _ age _; do
    path=${path#\"} path=${path%\"} path=${path%/}
    [ ${#path} -gt ${#rule} ] || continue
    # shellcheck disable=SC2254  # a pattern
    case $real in $path | $path/*) ;; *) continue ;; esac
    rule=$path
    case $type:$age in
    x* | [!D]*: | [!D]*:-) by='' ;;
    *) by=$path ;; # D: emptied when the host boots
    esac
  done <<LINES
$lines
LINES
  # Other cleaners have rules of their own, a later release of the system may have one, and some do not outlive a boot.
  case $rule in /tmp | /tmp/* | /var/tmp | /var/tmp/* | /run/?* | /dev/shm | /dev/shm/*) return 0 ;; esac
  case $real in
  /tmp/*) by=/tmp ;; /var/tmp/*) by=/var/tmp ;; /run/*) by=/run ;; /dev/shm/*) by=/dev/shm ;;
  esac
}
may_exclude() { # FOLDER: whether we may have systemd-tmpfiles leave it alone; sets conf, the file that says so (another folder is for tests)
  conf=${FLEETFORM_TMPFILES_DIR:-/etc/tmpfiles.d}/fleetform$(printf %s "$1" | tr / -).conf
  case $1 in *[!A-Za-z0-9/._-]*) return 1 ;; esac
  [ -w "${conf%/*}" ] && command -v systemd-tmpfiles >/dev/null
}
exclude() { # FOLDER, after `may_exclude`
  { printf '# Data of volumes and exit codes of fleetform lie here.\nx %s\n' "$1" >"$conf.new" && chmod 644 "$conf.new" &&
    mv -f "$conf.new" "$conf"; } 2>/dev/null
}
no_exclusion() { # FOLDER: it is gone
  ! may_exclude "$1" || rm -f "$conf"
} 2>/dev/null
