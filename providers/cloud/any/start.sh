#!/bin/sh
# Prepares a node for its first login, as cloud-init does from our user data, on a cloud that runs a shell script at every start
# and no cloud-init. It is sent with its arguments in a line `set -- …` before it. It runs as root, and does nothing once it has
# succeeded: users may log in by then, and what they put in place of a file must not be followed.
#
#   USER UID LOGIN PRIVATE PUBLIC RULE FILE TEXT
#       USER is made if there is none, with the number UID (empty: any), and may log in with the public key LOGIN. PRIVATE and
#       PUBLIC are the host key, in place of those of the image. RULE (empty: none) is what USER may do by sudo, FILE (empty:
#       none) a program of root's with TEXT in it
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
user=$1 uid=$2 login=$3 private=$4 public=$5 rule=$6 file=$7 text=$8
done=/var/lib/fleetform/started

put() { # FILE MODE TEXT: FILE is never seen half written
  (umask 077 && printf '%s\n' "$3" >"$1.new")
  chmod "$2" "$1.new"
  mv "$1.new" "$1"
}

[ ! -e "$done" ] || exit 0
# `*`: no password, and not locked either, which a sshd without PAM would take for no login at all.
id "$user" >/dev/null 2>&1 || useradd --create-home --user-group --shell /bin/sh --password '*' ${uid:+--uid "$uid"} "$user"
home=$(getent passwd "$user" | cut -d: -f6)
# shellcheck disable=SC2016  # the other shell's arguments
runuser -u "$user" -- sh -euc '
  cd "$1"
  umask 077
  mkdir -p .ssh
  grep -qxF -e "$2" .ssh/authorized_keys 2>/dev/null || printf "\n%s\n" "$2" >>.ssh/authorized_keys
' sh "$home" "$login"
[ -z "$file" ] || put "$file" 755 "$text"
[ -z "$rule" ] || put /etc/sudoers.d/90-fleetform 440 "$user $rule"
rm -f /etc/ssh/ssh_host_*
put /etc/ssh/ssh_host_ed25519_key 600 "$private"
put /etc/ssh/ssh_host_ed25519_key.pub 644 "$public"
systemctl restart ssh 2>/dev/null || systemctl restart sshd 2>/dev/null || service ssh restart
mkdir -p "${done%/*}"
touch "$done"
