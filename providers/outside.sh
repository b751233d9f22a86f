# shellcheck shell=sh
# Stays with an attempt whose task runs in a container, as long as the container: what the runner cannot do by signals.
#   term     TERM to all its processes
#   alive    whether it runs; an ended one is removed
#   remove   ends it at once and removes it; fails as long as it may exist
attempt_dir=${0%/*}
read -r runtime name <"$attempt_dir/container" || exit 1

# OPTION...: the containers of that name; fails if the runtime does not answer
named() { timeout 20 "$runtime" ps "$@" --filter "name=$name" --format '{{.Names}}' 2>/dev/null </dev/null; }
remove() {
  now=''
  [ "$runtime" != podman ] || now='--time 0'
  # shellcheck disable=SC2086  # words
  timeout 20 "$runtime" rm --force $now "$name" >/dev/null 2>&1 </dev/null
  left=$(named --all) || return 1
  ! printf '%s\n' "$left" | grep -qxF -e "$name" || return 1
  if [ -e "$attempt_dir/making" ] && [ "$runtime" = docker ]; then # docker may still make it, though no client waits
    sleep 10
    rm -f "$attempt_dir/making"
    return 1
  fi
  rm -f "$0"
}
case $1 in
term) timeout 20 "$runtime" exec "$name" sh -c 'kill -s TERM -1' </dev/null ;;
alive)
  found=$(named) || exit 0 # not known: its blocks must not be used again
  if printf '%s\n' "$found" | grep -qxF -e "$name"; then exit 0; fi
  remove
  exit 1
  ;;
remove) remove ;;
esac
