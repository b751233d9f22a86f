#!/bin/sh
# shellcheck disable=SC2154  # usual, wrong and was: by find_root and is_copy (root.sh)
# Whose node a host is. In the script that is put on hosts, this part follows `confine.sh`, `root.sh` and `epoch.sh`, and
# `runner.sh` follows it.
#
# The first line of the state folder's file `claim` is the id of the node; the rest is the caller's. There is one
# such file, so a host is one node at a time. The folder of that id holds all that belongs to the node. The runner
# refuses its commands if $FLEETFORM_RUNNER_DIR, which is FOLDER/ID/ranks, is of another node. More commands:
#
#   @show FOLDER               "FLEETFORM-CLAIM BYTES", then that many bytes: the claim
#   @claim FOLDER ID BYTES     takes the host with the claim on stdin, if nobody has it; then as @show
#   @change FOLDER ID BYTES    replaces the claim with that id; then as @show
#   @release FOLDER ID         gives the host back and removes all of the node; refused while a rank runs. The last
#                              release removes the state folder (`leave` in epoch.sh)
#   @tidy FOLDER ID ATTEMPT... removes those of these attempts that have ended, with their folders
#   @move [TO]                 moves the folder of this script to TO, or to where it would be made today; for people. Run
#                              again it completes one that was killed
#
# It checks the writer's number before it changes anything: see epoch.sh.

refuse() { # CODE TEXT
  printf 'FLEETFORM-ERR %s %s\n' "$1" "$2"
  exit 76
}
held() { # FOLDER: sets held
  held=''
  { read -r held <"$1/claim"; } 2>/dev/null || :
}
show() { # FOLDER
  if [ -e "$1/claim" ]; then
    text=$(cat "$1/claim" && echo .) || refuse unwritable "$1/claim"
    text=${text%.}
    LC_ALL=C
    printf 'FLEETFORM-CLAIM %s\n%s' "${#text}" "$text"
  else
    echo 'FLEETFORM-CLAIM 0'
  fi
}
bring() { # FOLDER BYTES: the claim from stdin, whole, as $new
  umask 077
  new=$1/claim.$$
  trap 'rm -f "$new"' EXIT
  trap 'exit 76' HUP INT TERM
  true 2>/dev/null >"$new" || refuse unwritable "$1"
  head -c "$2" 2>/dev/null >"$new" || refuse nospace "$1"
  size=$(stat -c %s "$new")
  [ "$size" -eq "$2" ] || refuse truncated "$size of $2 bytes came"
  chmod 1600 "$new" # the sticky bit: systemd-tmpfiles leaves such files alone, however old they get
  sync "$new"
}
running() { # FOLDER ID: sets busy, to all that runs
  busy=''
  [ -d "$1/$2/ranks" ] || return 0
  polled=$(FLEETFORM_RUNNER_DIR=$1/$2/ranks sh "$0" _poll) || polled=''
  case $polled in *FLEETFORM-END*) ;; *) refuse unwritable "$1/$2/ranks does not say what runs there" ;; esac
  busy=$(printf '%s\n' "$polled" | sed -n 's/^\([^ ]*\) \(running\|orphan\|preparing\|gated\) .*/\1/p')
}
numbers() { # FOLDER: sets numbers to the files whose locks keep its owners and the runners of its nodes from changing it
  numbers=''
  for each in "$1"/.epoch.* "$1"/*/ranks; do
    case $each in */ranks) each=$each/.epoch ;; esac
    [ ! -e "${each%/.epoch}" ] || numbers="$numbers${each#"$1"/}
"
  done
}
move() { # FOLDER TO: all of it at once, or nothing. No other command changes anything in it meanwhile
  from=$1 to=${2%/}
  case $from in /*) ;; *) refuse usage "call this script by its whole path" ;; esac
  find_root "$from"
  [ -z "$wrong" ] || refuse root "$wrong"
  [ -O "$from" ] && [ ! -L "$from" ] || refuse unwritable "$from belongs to someone else: run this as its owner"
  if [ -z "$to" ]; then
    find_usual
    [ -z "$wrong" ] || refuse usage "$wrong: say where to"
    to=$usual
  fi
  case $to in "$from" | "$from"/* | [!/]*) refuse usage "$from cannot be moved to $to" ;; esac
  held "$from"
  # Its runner makes this with the first rank.
  [ -z "$held" ] || (umask 077 && mkdir -p "$from/$held/ranks") || refuse unwritable "$from"
  numbers "$from"
  set -- flock -n -E 75 "$from" sh "$0" @moving "$to" "$numbers"
  while read -r each; do
    [ -z "$each" ] || set -- flock -n -E 75 "$from/$each" "$@" # not by numbers of files: a shell has ten
  done <<NUMBERS
$numbers
NUMBERS
  unset FLEETFORM_EPOCH # of a caller, whose runner would wait for a lock that is held here
  "$@"
  code=$?
  [ "$code" -ne 75 ] || refuse busy "another command works in $from"
  exit "$code"
}
# Its file `moved` has a token, and the file `moving` of a copy has its path and that token. What is not needed any more
# has `gone` after the token: nothing else is erased.
moving() { # FOLDER TO NUMBERS: as `move`, which holds the locks of these numbers
  from=$1 to=$2 had=$3 part=$2.moving old=$1.gone
  calm
  token=$(cat "$from/moved" 2>/dev/null)
  case $token in '' | *[!0-9a-f-]*)
    { read -r token </proc/sys/kernel/random/uuid && echo "$token" >"$from/moved"; } 2>/dev/null || refuse nospace "$from"
    ;;
  esac
  for each in "$part" "$old"; do
    { [ ! -e "$each" ] && [ ! -L "$each" ]; } || { [ ! -L "$each" ] && [ -O "$each" ]; } || refuse unwritable "$each belongs to someone else"
    [ ! -e "$each" ] || rmdir "$each" 2>/dev/null || { remains "$each" && erase "$each"; } ||
      refuse unwritable "$each is there already, and nothing tells that it is not needed: give it another name"
  done
  [ ! -e "$to" ] || rmdir "$to" 2>/dev/null || vacant || refuse unwritable "$to is there already"
  mask=$(umask)
  case $to in /var/lib/fleetform/*) mask=022 ;; esac
  (umask "$mask" && mkdir -p "${to%/*}") || refuse unwritable "${to%/*}"
  umask 077
  rm -f "$from/moving"
  # Whether a rename can do it. Two mounts of one disk, or two volumes of btrfs, have one number and allow no rename.
  if ln "$from/moved" "$part" 2>/dev/null; then
    rm -f "$part"
    is_local "$to" || cat /proc/sys/kernel/hostname >"$from/host" || refuse nospace "$from"
    mv -T "$from" "$to" || refuse unwritable "$to"
    same "$to" || {
      mv -T "$to" "$from" || refuse busy "another command works in $from, and what was there is in $to: put it back"
      refuse busy "another command works in $from"
    }
    rm -f "$to/moved"
  else
    copy
  fi
  no_exclusion "$from"
  cleaned "$to"
  [ -z "$by" ] || { may_exclude "$to" && exclude "$to"; } || echo "files in $by are deleted when they are old"
  echo "moved from $from to $to"
}
copy() { # to another disk. At each moment one of the two folders counts: see `is_copy`
  [ -w "${from%/*}" ] && ! mountpoint -q "$from" || refuse unwritable "$from cannot be renamed: a mount point, or ${from%/*} belongs to someone else"
  foreign=''
  [ "$(id -u)" = 0 ] || foreign=$(find "$from" ! -user "$(id -u)" -print 2>/dev/null | head -n 1)
  [ -z "$foreign" ] || refuse foreign "$foreign belongs to someone else, as files that containers made do: to move all of it to another disk, run \`chown -R $(id -un) $from\` as root"
  mkdir "$part" || refuse unwritable "$part" # nobody else's
  printf '%s\n' "$from" "$token" >"$part/moving" || {
    erase "$part"
    refuse nospace "$to"
  }
  said=$(cp -a "$from/." "$part" 2>&1) || {
    erase "$part"
    case $said in
    *'No space left'* | *'quota exceeded'*) refuse nospace "$to" ;;
    *) refuse unwritable "$(printf %s "$said" | head -n 1 | head -c 200)" ;;
    esac
  }
  rm -f "$part/host" "$part/moved"
  is_local "$to" || cat /proc/sys/kernel/hostname >"$part/host" || {
    erase "$part"
    refuse nospace "$to"
  }
  sync
  (calm) || { erase "$part" && exit 76; }
  mv -T "$part" "$to" || { erase "$part" && refuse unwritable "$to"; }
  sync "${to%/*}"
  mv -T "$from" "$old" || {
    discard
    refuse unwritable "$from"
  }
  same "$old" || {
    mv -T "$old" "$from" || {
      mv -T "$to" "$part" # it lacks what came meanwhile
      refuse busy "another command works in $from, and what was there is in $old: put it back"
    }
    discard
    refuse busy "another command works in $from"
  }
  sync "${from%/*}"
  echo gone >>"$old/moved"
  rm -f "$to/moving"
  (erase "$old") >/dev/null || echo "$old could not be removed: it is not needed any more"
}
calm() { # refuses if anything runs, or an owner or a node came meanwhile
  same "$from" || refuse busy "another command works in $from"
  for node in "$from"/*/ranks; do
    node=${node%/ranks}
    running "$from" "${node##*/}"
    # shellcheck disable=SC2086,SC2116  # words
    [ -z "$busy" ] || refuse running "$(echo $busy): stop them first"
  done
}
same() { # FOLDER: whether it has the numbers whose locks are held
  numbers "$1"
  [ "$numbers" = "$had" ]
}
remains() { # PATH: whether an earlier move left it when it was killed
  is_copy "$1" || [ "$(cat "$1" 2>/dev/null)" = "$token" ] || [ "$(sed -n 2p "$1/moved" 2>/dev/null)" = gone ]
}
vacant() { # what an earlier move to there left behind when it was killed
  [ -O "$to" ] && is_copy "$to" && [ "$was" = "$from" ] && discard
}
discard() { # a copy: half of it, without `moving`, would count
  mv -T "$to" "$part" && erase "$part"
}
erase() { # PATH: also folders that a task made read-only
  strip "$1" 2>/dev/null || { chmod -R u+rwx "$1" && strip "$1"; } 2>/dev/null || refuse unwritable "$1"
}
strip() { # PATH: last what `remains` looks for
  mark=moved
  [ ! -e "$1/moving" ] || mark=moving
  find "$1" -mindepth 1 -maxdepth 1 ! -name "$mark" -exec rm -rf {} + && rm -rf "$1"
}

verb=${1-}
case $verb${FLEETFORM_OWNER:+/$FLEETFORM_EPOCH} in # for a command of the runner, the number is that of the node
@claim/* | @change/* | @release/* | @tidy/*) current "$2/.epoch.$FLEETFORM_OWNER" ;;
esac
unset FLEETFORM_OWNER
case $verb in
@move) move "${0%/bin/*}" "${2-}" ;;
@moving) moving "${0%/bin/*}" "$2" "$3" ;;
@show) show "$2" ;;
@claim)
  bring "$2" "$4"
  mkdir -p "$2/$3" 2>/dev/null || refuse nospace "$2"
  ln "$new" "$2/claim" 2>/dev/null || [ -e "$2/claim" ] || refuse unwritable "$2 cannot hold links"
  sync "$2"
  held "$2"
  [ "$held" = "$3" ] || rmdir "$2/$3" 2>/dev/null
  show "$2"
  ;;
@change)
  bring "$2" "$4"
  held "$2"
  [ "$held" = "$3" ] || refuse gone "the host is not this node any more"
  mv -f "$new" "$2/claim" || refuse unwritable "$2"
  sync "$2"
  show "$2"
  ;;
@release)
  running "$2" "$3"
  # shellcheck disable=SC2086,SC2116  # words, with one space between them
  [ -z "$busy" ] || refuse running "$(echo $busy)"
  held "$2"
  [ "$held" != "$3" ] || rm -f "$2/claim" || refuse unwritable "$2/claim"
  for confined in "$2/$3"/ranks/*/confined; do # of lost attempts
    # shellcheck disable=SC2086  # folders without spaces
    { read -r _ groups <"$confined" && emptied $groups; } 2>/dev/null || :
  done
  if [ -d "$2/$3" ]; then erase "$2/$3"; fi
  for old in "$2"/bin/*.sh; do [ "$old" = "$0" ] || rm -f "$old"; done # no rank runs that could need them
  leave "$2"
  ;;
@tidy)
  folder=$2 node=$2/$3
  held "$folder"
  [ "$held" = "$3" ] || refuse gone "the host is not this node any more"
  shift 3
  for id; do
    if FLEETFORM_RUNNER_DIR=$node/ranks sh "$0" forget "$id" >/dev/null; then
      rm -rf "$node/hosts/$id" "$node/files/use/$id"
      if [ -d "$node/work/$id" ]; then erase "$node/work/$id"; fi
    fi
  done
  for archive in "$node"/files/*.tar; do # one link: no attempt uses it
    [ "$(stat -c %h "$archive" 2>/dev/null)" != 1 ] || rm -f "$archive"
  done
  ;;
esac
case $verb in
@*) exit 0 ;;
_poll) set -- poll ;;
_*) ;;
*)
  node=${FLEETFORM_RUNNER_DIR%/ranks}
  held "${node%/*}"
  [ "$held" = "${node##*/}" ] || refuse gone "the host is not this node any more"
  ;;
esac
unset node held verb mine

