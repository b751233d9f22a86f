# shellcheck shell=sh
# Puts a script into the state folder. It gets its name when it is whole: half a script must never run.
# Arguments: the folder, the script's name, its bytes, its SHA-256; `own` for a folder of this host alone. The script
# comes on stdin. It follows `root.sh`.
LC_ALL=C
export LC_ALL
mask=$(umask)
umask 077
refuse() { # CODE TEXT
  printf 'FLEETFORM-ERR %s %s\n' "$1" "$2"
  exit 76
}
command -v sha256sum >/dev/null || refuse tools 'sha256sum is needed'
[ ! -L "$1" ] || refuse unwritable "$1 is a link"
there=''
[ ! -d "$1" ] || there=1
# Other users may have things in what is above it: disks of clouds are mounted in /var/lib/fleetform.
case $1 in /var/lib/fleetform/*) mask=022 ;; esac
said=$( (umask "$mask" && mkdir -p "${1%/*}") 2>&1 && mkdir -p "$1/bin" 2>&1) || case $said in
*'No space left'*) refuse nospace "$1" ;;
*) refuse unwritable "$1" ;;
esac
# Others may be able to write where it lies: we must not run what another user put there.
[ -O "$1" ] && [ -O "$1/bin" ] || refuse unwritable "$1 belongs to someone else"
chmod 700 "$1" "$1/bin" || refuse unwritable "$1"
if [ "${5-}" = own ] && [ -z "$there" ]; then
  is_local "$1" || cat /proc/sys/kernel/hostname >"$1/host" || refuse nospace "$1"
  cleaned "$1"
  [ -z "$by" ] || ! may_exclude "$1" || exclude "$1" || :
fi
new=$1/bin/.$2.$$
trap 'rm -f "$new"' EXIT
trap 'exit 76' HUP INT TERM
true 2>/dev/null >"$new" || refuse unwritable "$1/bin"
head -c "$3" 2>/dev/null >"$new" || refuse nospace "$1"
size=$(stat -c %s "$new")
[ "$size" -eq "$3" ] || refuse truncated "$size of $3 bytes came"
sum=$(sha256sum <"$new")
[ "${sum%% *}" = "$4" ] || refuse truncated 'it came damaged'
chmod 1600 "$new" # the sticky bit: systemd-tmpfiles leaves such files alone, however old they get
sync "$new"
mv -f "$new" "$1/bin/$2" || refuse unwritable "$1/bin"
echo FLEETFORM-PUT
