# Stands before scripts that change what one owner has on a host. $FLEETFORM_EPOCH is the number of the writer, and
# $FLEETFORM_OWNER whose things he writes: the highest number that came is kept in FOLDER/.epoch.OWNER, and a lower one
# is refused with the code stale. See runner.sh, which keeps one of its own for each node.
#
# `leave` takes away what is ours alone, once nothing of anybody is there any more. The numbers go only with the folder:
# who has an old one and is on his way finds none then, and is refused as well.
current() { # FILE: nobody newer comes in before we end
  mine=$1
  { command exec 7>>"$1"; } 2>/dev/null || { [ "${verb-}" = show ] && return; } || refuse unwritable "$1"
  flock -w 10 7 || refuse busy "$1 is locked"
  newest=0
  read -r newest <"$1" || :
  if [ "${newest:-0}" -lt "$FLEETFORM_EPOCH" ]; then
    { printf '%-63s\n' "$FLEETFORM_EPOCH" 1<>"$1"; } 2>/dev/null || [ "${verb-}" = show ] || refuse nospace "$1"
  fi
  flock -s -w 10 7 || refuse busy "$1 is locked" # several of his may go on at once
  newest=0
  read -r newest <"$1" || : # it was let go for a moment
  [ "${newest:-0}" -le "$FLEETFORM_EPOCH" ] || refuse stale "a later command was here ($newest, and this is $FLEETFORM_EPOCH)"
}
idle() { # FOLDER: nothing is there but scripts and numbers, and nobody else writes
  rmdir "$1/volumes" 2>/dev/null || :
  for left in "$1"/* "$1"/.[!.]*; do
    case ${left##*/} in
    bin | '*' | '.[!.]*') ;;
    .epoch.*) [ "$left" = "${mine-}" ] || flock -n "$left" true || return 1 ;;
    *) return 1 ;;
    esac
  done
}
leave() { # FOLDER
  [ ! -L "$1" ] && [ -O "$1" ] && idle "$1" || return 0
  [ -z "${mine-}" ] || { flock -w 10 7 && idle "$1"; } || return 0 # others of this owner have ended now
  rm -f "$1"/bin/runner-*.sh "$1"/bin/.runner-*.sh.*
  rmdir "$1/bin" 2>/dev/null || return 0
  echo FLEETFORM-LEFT
  [ -w "${1%/*}" ] && ! mountpoint -q "$1" || return 0
  rm -f "$1"/.epoch.*
  rmdir "$1" 2>/dev/null || : # not where somebody put something meanwhile
}
