# shellcheck shell=sh
# Precedes scripts that change one owner's things on a host. $FLEETFORM_EPOCH is the number of the writer, and
# $FLEETFORM_OWNER the owner. FOLDER/.epoch.OWNER keeps the highest number that came, and a lower one is refused with
# the code stale. runner.sh keeps such a number for each node.
#
# `leave` removes the state folder once no owner has anything in it; it needs `root.sh`. The numbers go only with the folder: a late writer
# with a lower number finds no folder then, and is refused as well.
current() { # FILE: no later writer changes anything before this script ends
  mine=$1
  { command exec 7>>"$1"; } 2>/dev/null || { [ "${verb-}" = show ] && return; } || refuse unwritable "$1"
  flock -w 10 7 || {
    # Its own code for an error, as of a network's disk whose server gives no locks: nobody needs to wait for that.
    [ $? -eq 1 ] || refuse unwritable "$1 cannot be locked (flock): the folder has to be on another disk"
    refuse busy "$1 is locked"
  }
  newest=0
  read -r newest <"$1" || :
  if [ "${newest:-0}" -lt "$FLEETFORM_EPOCH" ]; then
    { printf '%-63s\n' "$FLEETFORM_EPOCH" 1<>"$1"; } 2>/dev/null || [ "${verb-}" = show ] || refuse nospace "$1"
  fi
  flock -s -w 10 7 || refuse busy "$1 is locked" # commands of one writer may run at once
  newest=0
  read -r newest <"$1" || : # the lock was released for a moment
  [ "${newest:-0}" -le "$FLEETFORM_EPOCH" ] || refuse stale "a later command was here ($newest, and this is $FLEETFORM_EPOCH)"
}
idle() { # FOLDER: it holds only scripts, numbers and what killed commands left, and no other command writes
  rmdir "$1/volumes" 2>/dev/null || :
  for left in "$1"/* "$1"/.[!.]*; do
    case ${left##*/} in
    bin | host | moving | moved | claim.[0-9]* | .fleetform-probe.* | '*' | '.[!.]*') ;;
    .epoch.*) [ "$left" = "${mine-}" ] || flock -n "$left" true || return 1 ;;
    *) return 1 ;;
    esac
  done
}
leave() { # FOLDER
  [ ! -L "$1" ] && [ -O "$1" ] && idle "$1" || return 0
  [ -z "${mine-}" ] || { flock -w 10 7 && idle "$1"; } || return 0 # other commands of this owner have ended now
  rm -f "$1"/bin/runner-*.sh "$1"/bin/.runner-*.sh.*
  rmdir "$1/bin" 2>/dev/null || return 0
  echo FLEETFORM-LEFT
  [ -w "${1%/*}" ] && ! mountpoint -q "$1" || return 0
  rm -f "$1"/.epoch.* "$1/host" "$1/moving" "$1/moved" "$1"/claim.[0-9]* "$1"/.fleetform-probe.*
  rmdir "$1" 2>/dev/null || return 0 # not if another command put something there
  no_exclusion "$1"
  case $1 in /var/lib/fleetform/* | */.local/state/fleetform/*) rmdir "${1%/*}" 2>/dev/null || : ;; esac
}
