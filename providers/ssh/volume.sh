# Volumes on a host's disk. Each has a folder below FOLDER/volumes, outside of all nodes, since it outlives them:
#
#   KEY/volume   the volume: the key, then the caller's text; it comes last and whole
#   KEY/held     who holds it: the id of a node and a key, then the text of the attachment. It counts as long as
#                the host is that node (see claim.sh), so an attachment ends with its node
#   KEY/data     the user's
#   .gone.KEY    being removed
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
# "KEY BYTES BYTES" and those two texts for each volume, or for the named one; and "FLEETFORM-END".
#
# It checks the writer's number first: see epoch.sh.
LC_ALL=C
export LC_ALL
usual=$(umask)
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
  printf '%s %s %s\n%s%s' "${1##*/}" "${#volume}" "${#text}" "$volume" "$text"
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
  { command exec 9>>"$one/lock"; } 2>/dev/null || refuse lost "it is not there"
  flock -w 10 9 || refuse busy "$one is locked"
  there
}

verb=$1 all=$2/volumes one=$2/volumes/${3-}
[ -z "${FLEETFORM_EPOCH-}" ] || [ ! -d "$2" ] || current "$2/.epoch.$FLEETFORM_OWNER"
case $verb in
show) ;;
make)
  mkdir -p "$one" 2>/dev/null || refuse unwritable "$all"
  if [ ! -e "$one/volume" ]; then
    free "$5"
    bring "$4"
    (umask "$usual" && mkdir -p "$one/data") || refuse unwritable "$one"
    # A link and not a rename: it cannot succeed twice.
    ln "$new" "$one/volume" 2>/dev/null || [ -e "$one/volume" ] || refuse unwritable "$one cannot hold links"
    sync "$one" "$all"
  fi
  ;;
change)
  there
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
    mv -f "$new" "$one/held" || refuse unwritable "$one"
    sync "$one"
  fi
  ;;
drop)
  if [ -e "$one/volume" ]; then
    alone
    holder "$one"
    [ "$by" != "$4" ] || rm -f "$one/held" || refuse unwritable "$one"
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
    rm -f "$one"/.new.* "$one/lock" # of a make that was cut short
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
  for one in "$all"/[0-9a-f]*; do [ ! -d "$one" ] || show "$one"; done
elif [ -d "$one" ]; then
  show "$one"
fi
echo FLEETFORM-END
