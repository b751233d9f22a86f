# shellcheck shell=sh disable=SC2154  # root: by find_root (root.sh)
# Volumes on a host's disk. Each has a folder below FOLDER/volumes, outside of all nodes, since it outlives them:
#
#   KEY/volume   the volume: the key, then the caller's text; it comes last and whole
#   KEY/held     who holds it: the id of a node and a key, then the text of the attachment. It counts as long as
#                the host is that node (see claim.sh), so an attachment ends with its node
#   KEY/data     the user's
#   KEY/kept     nobody touches it: a cleaner of old files that deletes some in `data` deletes this one, too
#   KEY/guarded  there was a `kept`
#   KEY/filled   there was something in `data` when it was detached last
#   .gone.KEY    being removed
#
# FOLDER is the state folder, or empty for the usual one.
#
#   show FOLDER                       all volumes and what holds them
#   make FOLDER KEY BYTES KIB         makes one from stdin if KIB are free; an existing one stays as it is
#   change FOLDER KEY BYTES KIB       replaces the text by that on stdin, if KIB more are free
#   hold FOLDER KEY BYTES NODE HOLDER attaches it by the text on stdin, if no other holder has it
#   drop FOLDER KEY HOLDER            detaches it from that holder
#   ready FOLDER NODE KEY...          refuses volumes that a rank of that node cannot use
#   remove FOLDER KEY                 removes it with its data; refused while it is held. The last remove
#                                     removes the state folder (`leave` in epoch.sh)
#
# All answer with "FLEETFORM-VOLUMES"; a line "claim BYTES 0" and that text, if the host is a node; a line
# "KEY BYTES BYTES" and those two texts for each volume, or for the named one; and "FLEETFORM-END". After the sizes of one
# whose content vanished come a word and its folder: data (`data` is no folder), cleaned (old files were deleted) or
# emptied (it was filled, and nobody holds it).
#
# It follows `root.sh`, and checks the writer's number first: see epoch.sh.
LC_ALL=C
export LC_ALL
mask=$(umask)
umask 077
refuse() { # CODE TEXT
  printf 'FLEETFORM-ERR %s %s\n' "$1" "$2"
  exit 76
}
content() { # FILE: sets text, which is empty without a file. It does not fork: there may be hundreds of volumes
  text='' line=''
  [ -e "$1" ] || return 0
  { while IFS= read -r line; do text="$text$line
"; done <"$1"; } 2>/dev/null || refuse unwritable "$1"
  text=$text$line
  [ "$text" ] || [ ! -s "$1" ] || refuse unwritable "$1" # the disk gave no byte of it
}
holder() { # VOLUME: sets node and by, if the host is the node that holds it
  node='' by='' claim=''
  { read -r claim <"$all/../claim"; } 2>/dev/null || :
  { read -r node by <"$1/held"; } 2>/dev/null || :
  [ "$node" ] && [ "$node" = "$claim" ] || node='' by=''
}
show() { # VOLUME
  content "$1/volume"
  [ "$text" ] || return 0 # not yet made, or being removed
  volume=$text
  holder "$1"
  text=''
  [ -z "$by" ] || content "$1/held"
  vanished=''
  if [ ! -d "$1/data" ]; then vanished=" data $1"
  elif [ -e "$1/guarded" ] && [ ! -e "$1/kept" ]; then vanished=" cleaned $1"
  elif [ -z "$by" ] && [ -e "$1/filled" ]; then
    case $empty in *"
$1/data
"*) vanished=" emptied $1" ;; esac
  fi
  printf '%s %s %s%s\n%s%s' "${1##*/}" "${#volume}" "${#text}" "$vanished" "$volume" "$text"
}
look_into() { # VOLUME...: sets empty to those of the filled ones that are empty, by one process for all
  for each; do
    shift
    [ ! -e "$each/filled" ] || set -- "$@" "$each/data"
  done
  empty=''
  [ $# -eq 0 ] || empty="
$(find "$@" -maxdepth 0 -empty 2>/dev/null)
"
}
guard() { # before there is any data; a full disk hinders nothing
  [ -e "$one/guarded" ] || { true >"$one/kept" && true >"$one/guarded" && chmod 1600 "$one/guarded"; } 2>/dev/null || :
}
free() { # KIB
  fs=$(stat -f -c '%a %S' "$all") || refuse unwritable "$all"
  have=$((${fs% *} * ${fs#* } / 1024))
  [ "$1" -le "$have" ] || refuse room "$have"
}
bring() { # BYTES: from stdin, whole, as $new
  new=$one/.new.$$
  trap 'rm -f "$new"' EXIT
  trap 'exit 76' HUP INT TERM
  { head -c "$1" >"$new"; } 2>/dev/null || refuse nospace "$one"
  size=$(stat -c %s "$new")
  [ "$size" -eq "$1" ] || refuse truncated "$size of $1 bytes came"
  chmod 1600 "$new" # the sticky bit: systemd-tmpfiles leaves such files alone, however old they get
  sync "$new"
}
there() { [ -e "$one/volume" ] || refuse lost "it is not there"; }
alone() { # other changes wait; only held for moments
  { command exec 9>>"$one/lock"; } 2>/dev/null || { there && refuse unwritable "$one"; }
  flock -w 10 9 || refuse busy "$one is locked"
  there
}

find_root "$2"
[ -z "$wrong" ] || refuse root "$wrong"
verb=$1
shift 2
set -- "$verb" "$root" "$@"
all=$2/volumes one=$2/volumes/${3-}
[ -z "${FLEETFORM_EPOCH-}" ] || [ ! -d "$2" ] || current "$2/.epoch.$FLEETFORM_OWNER"
case $verb in
show) ;;
make)
  mkdir -p "$one" 2>/dev/null || refuse unwritable "$all"
  if [ ! -e "$one/volume" ]; then
    free "$5"
    bring "$4"
    guard
    (umask "$mask" && mkdir -p "$one/data") || refuse unwritable "$one"
    # A link and not a rename: it cannot succeed twice.
    ln "$new" "$one/volume" 2>/dev/null || [ -e "$one/volume" ] || refuse unwritable "$one cannot hold links"
    sync "$one" "$all"
  fi
  ;;
change)
  there
  guard
  [ "$5" -le 0 ] || free "$5"
  bring "$4"
  mv -f "$new" "$one/volume" || refuse unwritable "$one"
  sync "$one"
  ;;
hold)
  alone
  { read -r claim <"$2/claim"; } 2>/dev/null || claim=''
  [ "$claim" = "$5" ] || refuse elsewhere "the host of the volume is not that node"
  holder "$one"
  if [ -z "$by" ]; then
    bring "$4"
    guard
    rm -f "$one/filled" # it may do with its data as it likes
    mv -f "$new" "$one/held" || refuse unwritable "$one"
    sync "$one"
  fi
  ;;
drop)
  if [ -e "$one/volume" ]; then
    alone
    holder "$one"
    if [ "$by" = "$4" ]; then
      rm -f "$one/held" || refuse unwritable "$one"
      [ -z "$(find "$one/data" -maxdepth 0 ! -empty 2>/dev/null)" ] || true >"$one/filled"
    fi 2>/dev/null
    sync "$one"
  fi
  ;;
ready)
  node_wanted=$3
  shift 3
  for key; do
    one=$all/$key
    there
    [ -d "$one/data" ] || refuse lost "it has lost its data: $one/data is no folder"
    { read -r claim <"$all/../claim"; } 2>/dev/null || claim=''
    [ "$claim" = "$node_wanted" ] || refuse elsewhere "the host of the volume is not that node"
  done
  ;;
remove)
  if [ -e "$one/volume" ]; then
    alone
    holder "$one"
    [ -z "$by" ] || refuse held "$by"
    mv "$one" "$all/.gone.$3" || refuse unwritable "$all"
    sync "$all"
  elif [ -d "$one" ]; then
    rm -f "$one"/.new.* "$one/lock" "$one/kept" "$one/guarded" # of a make that was cut short
    rmdir "$one/data" "$one" 2>/dev/null
  fi
  for old in "$all"/.gone.*; do
    [ -e "$old" ] || continue
    rm -rf "$old" 2>/dev/null || { chmod -R u+rwx "$old" && rm -rf "$old"; } 2>/dev/null || refuse unwritable "$old"
  done
  [ ! -d "$2" ] || leave "$2"
  ;;
esac
echo FLEETFORM-VOLUMES
if [ "$verb" = show ]; then
  content "$2/claim"
  [ -z "$text" ] || printf 'claim %s 0\n%s' "${#text}" "$text"
  look_into "$all"/[0-9a-f]*
  for one in "$all"/[0-9a-f]*; do
    [ -d "$one" ] || continue
    [ -z "${FLEETFORM_EPOCH-}" ] || [ ! -e "$one/volume" ] || guard # one of an earlier version
    show "$one"
  done
elif [ -d "$one" ]; then
  look_into "$one"
  show "$one"
fi
echo FLEETFORM-END
