# shellcheck shell=sh disable=SC2034,SC2154  # the parts of the runner share their variables: see runner.sh
# What ends a run by itself: its limit, a host that is cut off, an unused GPU. Each of these watchers is a process of its
# own beside the supervisor, and ends with the run. Functions only, a part of the runner.

# ------------------------------------------------------------------------------------------------ limit

watch_limit() { # NUMBER: there is a new watcher for each new limit, and the old ones give up
  while is_live && [ "$watcher" = "$1" ] && [ "$limit_at" != - ]; do
    read_uptime
    remaining=$((limit_at - now))
    if [ "$remaining" -le 0 ]; then end_attempt limit "$grace" && return; fi
    [ "$remaining" -lt 6000 ] || remaining=6000
    wait_for_end "$remaining"
  done
}

# ---------------------------------------------------------------------------------------------- contact

# watch_contact SECONDS ADDRESSES: ends a run once its host was cut off for so long: then it may be run again elsewhere.
# It is cut off while no command comes, and neither its gateway nor one of the addresses answers that answered before.
# Where none ever did, the link has to be down. That no command comes is no reason by itself.
watch_contact() {
  longest=$((100 * $1)) interval=$((10 * $1)) has_answered='' route='' seconds=''
  addresses=$(printf %s "$2" | tr , ' ')
  [ "$interval" -ge 100 ] || interval=100
  [ "$interval" -le 3000 ] || interval=3000
  while read -r link destination gateway _; do
    [ "$destination" != 00000000 ] || { route=$link && add_gateway "$gateway"; }
  done </proc/net/route
  read_uptime
  contact_at=$now
  while is_live; do
    if read_record alone seconds near && [ "$seconds $near" != "$1 $2" ]; then return; fi # another one watches
    read_uptime
    tried_at=$now
    if reaches_others; then
      contact_at=$tried_at
    else
      command_at=0
      { read -r command_at <"$runner_dir/.contact"; } 2>/dev/null || :
      read_uptime
      if [ "${command_at:-0}" -gt "$contact_at" ] && [ "$command_at" -le "$now" ]; then contact_at=$command_at; fi
      if [ $((now - contact_at)) -ge "$longest" ]; then
        [ "$grace" -le $(($1 / 3)) ] || grace=$(($1 / 3)) # it has to be over before it begins elsewhere
        end_attempt alone "$grace" && return
      fi
    fi
    wait_for_end "$interval"
  done
}
add_gateway() { # HEX, as /proc/net/route has it: adds it to addresses
  [ "$1" != 00000000 ] || return 0
  set -- "${1%??????}" "${1#??}" "${1#????}" "${1#??????}"
  addresses="$((0x$4)).$((0x${3%??})).$((0x${2%????})).$((0x$1)) $addresses"
}
reaches_others() { # sets has_answered once one of addresses answered
  for address in $addresses; do
    if is_answering "$address"; then has_answered=1 && return 0; fi
  done
  [ -z "$has_answered" ] || return 1
  carrier=1
  { read -r carrier <"/sys/class/net/$route/carrier" || carrier=0; } 2>/dev/null
  [ -z "$route" ] || [ "$carrier" = 1 ]
}
is_answering() { # ADDRESS: by ping, or by a port that is open or refused
  if command -v ping >/dev/null && ping -n -c 1 -W 2 "$1" >/dev/null 2>&1; then return 0; fi
  command -v bash >/dev/null || return 1
  # shellcheck disable=SC2016  # the shell's own
  error=$(timeout 2 bash -c 'true >"/dev/tcp/$0/22"' "$1" 2>&1) && return 0
  case $error in *refused*) ;; *) return 1 ;; esac
}

# ------------------------------------------------------------------------------------------------- GPUs

# watch_gpus PERCENT SECONDS GPUS: ends a run once one of its GPUs was used by less than PERCENT for so long, by each
# of twenty samples or more. What cannot be read counts as used, and so does the time before a gate opens. GPUS are
# UUIDs, or numbers where none are known, commas between them. used_1, used_2, … is when each GPU was used last.
watch_gpus() {
  longest=$((100 * $2)) interval=$((5 * $2))
  [ "$interval" -ge 20 ] || interval=20
  [ "$interval" -le 3000 ] || interval=3000
  gpus=$(printf %s "$3" | tr , ' ') written=''
  read_uptime
  nth=0
  for gpu in $gpus; do nth=$((nth + 1)) && eval "used_$nth=$now"; done
  while is_live; do
    wait_for_end "$interval"
    used='' nth=0
    usage=$(print_usage) || usage=''
    read_uptime
    for gpu in $gpus; do
      nth=$((nth + 1))
      sample=$(printf '%s\n' "$usage" | while read -r number uuid percent; do
        case $gpu in "$number" | "$uuid") echo "$number $uuid $percent" && break ;; esac
      done)
      percent=${sample##* }
      case $percent in *[!0-9]*) percent='' ;; esac
      if [ -p "$attempt_dir/gate" ] || [ -z "$percent" ] || [ "$percent" -ge "$1" ]; then eval "used_$nth=$now"; fi
      used_at=''
      eval "used_at=\$used_$nth"
      if [ $((now - used_at)) -ge "$longest" ]; then end_attempt unused "$grace" && return; fi
      [ -z "$percent" ] || used=$used${used:+,}$(printf %s "${sample% *}" | sed 's/ -$//' | tr ' ' :)=$percent
    done
    { [ "$used" = "$written" ] || write_record used "$used"; } 2>/dev/null
    written=$used
  done
}
print_usage() { # a line NUMBER UUID PERCENT for each GPU; `-` for no UUID
  if command -v nvidia-smi >/dev/null; then
    timeout -k 1 10 nvidia-smi --query-gpu=index,uuid,utilization.gpu --format=csv,noheader,nounits |
      tr -d ' %' | tr , ' '
  else
    uuids=$(timeout -k 1 10 rocm-smi --showuniqueid --csv | sed -n 's/^card\([0-9]*\),\(0x[0-9A-Fa-f]*\).*/\1 \2/p')
    timeout -k 1 10 rocm-smi --showuse --csv | sed -n 's/^card\([0-9]*\),\([0-9]*\).*/\1 \2/p' |
      while read -r number percent; do
        uuid=$(printf '%s\n' "$uuids" | sed -n "s/^$number //p")
        echo "$number ${uuid:--} $percent"
      done
  fi
} 2>/dev/null
