# Stands before scripts that change what one owner has on a host. $FLEETFORM_EPOCH is the number of the writer, and
# $FLEETFORM_OWNER whose things he writes: the highest number that came is kept in FOLDER/.epoch.OWNER, and a lower one
# is refused with the code stale. See runner.sh, which keeps one of its own for each node.
current() { # nobody newer comes in before we end
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
