# shellcheck shell=sh
# Puts the files of a task on a host, once for all its ranks there, and into the folder of one attempt.
#
#   put FOLDER ID DIGEST BYTES SHA256   takes the archive from stdin
#   place FOLDER ID DIGEST ATTEMPT      makes the attempt's folder with the files, if there is none yet
#
# FOLDER is the state folder, ID the node. Both answer "FLEETFORM-FILES placed", or "… missing" if the archive has to
# be put first. An archive gets its name when it is whole. Each attempt that uses it holds a link to it, as
# files/use/ATTEMPT; an archive without such links is not needed any more.
LC_ALL=C
export LC_ALL
refuse() { # CODE TEXT
  printf 'FLEETFORM-ERR %s %s\n' "$1" "$2"
  exit 76
}
failed() { # TEXT PATH: by the error of the system
  case $1 in
  *'No space left'* | *'quota exceeded'*) refuse nospace "$2" ;;
  *) refuse unwritable "$2: $(printf %s "$1" | head -n 1 | head -c 200)" ;;
  esac
}
verb=$1 node=$2/$3 archive=$2/$3/files/$4.tar
held=''
{ read -r held <"$2/claim"; } 2>/dev/null || :
[ "$held" = "$3" ] || refuse gone "the host is not this node any more"
command -v tar >/dev/null || refuse files 'tar is needed to unpack files, and not installed'
case $verb in
put)
  umask 077
  said=$(mkdir -p "$node/files/use" 2>&1) || failed "$said" "$node/files"
  new=$node/files/.new.$$
  trap 'rm -f "$new"' EXIT
  trap 'exit 76' HUP INT TERM
  true 2>/dev/null >"$new" || refuse unwritable "$node/files"
  head -c "$5" 2>/dev/null >"$new" || refuse nospace "$node/files"
  size=$(stat -c %s "$new")
  [ "$size" -eq "$5" ] || refuse truncated "$size of $5 bytes came"
  sum=$(sha256sum <"$new")
  [ "${sum%% *}" = "$6" ] || refuse truncated 'they came damaged'
  chmod 1600 "$new" # the sticky bit: systemd-tmpfiles leaves such files alone, however old they get
  mv -f "$new" "$archive" || refuse unwritable "$node/files"
  # An ended attempt needs no archive. The rank's next attempt may, so the archive stays until another comes.
  for use in "$node"/files/use/*; do
    if [ -e "$node/ranks/${use##*/}/exit" ]; then rm -f "$use"; fi
  done
  for old in "$node"/files/*.tar; do
    [ "$old" = "$archive" ] || [ "$(stat -c %h "$old" 2>/dev/null)" != 1 ] || rm -f "$old"
  done
  ;;
place)
  work=$node/work/$5
  if [ ! -d "$work" ]; then
    [ -f "$archive" ] || { echo 'FLEETFORM-FILES missing' && exit 0; }
    use=$node/files/use/$5
    said=$(mkdir -p "$node/work" 2>&1 && ln -f "$archive" "$use" 2>&1) || {
      # Another command may have removed it between the two.
      [ -f "$archive" ] || { echo 'FLEETFORM-FILES missing' && exit 0; }
      failed "$said" "$node"
    }
    new=$node/work/.new.$5.$$
    trap 'rm -rf "$new"' EXIT
    trap 'exit 76' HUP INT TERM
    said=$(mkdir "$new" 2>&1 && tar -xmof "$use" -C "$new" 2>&1) || failed "$said" "$node/work"
    mv -T "$new" "$work" 2>/dev/null || [ -d "$work" ] || refuse unwritable "$node/work"
  fi
  ;;
esac
echo 'FLEETFORM-FILES placed'
