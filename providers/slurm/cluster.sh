# shellcheck shell=sh
# The requests to a login node of Slurm, each in one round trip. `epoch.sh` precedes this file.
#
#   look DIR                                    Slurm's own answers, then the content of DIR, between marks
#   put DIR NAME BYTES [FOLDER] | change DIR NAME KEY BYTES | drop DIR NAME KEY [FOLDER]   a thing's text, from stdin
#   prepare DIR NODE ATTEMPT BYTES GATE GRACE HOST CPUS MEMORY GPUS LIMIT QUEUE OPTION...  a rank's script, from stdin
#   claim DIR NODE                             makes a node's folder, for files of ranks
#   seats DIR NODE/ATTEMPT...                   the content of their folders
#   submit DIR TOKEN NAME SECONDS BUNDLE NODE/ATTEMPT... -- OPTION...             one job for all of these ranks
#   expect DIR OPTION...                        when Slurm would start a job with these options; nothing is submitted
#   open DIR NODE SECONDS ATTEMPT...            lets prepared ranks run, and waits SECONDS for them to start
#   stop DIR NODE ATTEMPT GRACE                 returns when the attempt has ended
#   limit DIR NODE ATTEMPT SECONDS|off
#   adjust DIR NODE ATTEMPT GRACE MINUTES|-     its grace from now on, which the runner reads when it ends the attempt; its
#                                               job is given at least so many minutes (-: as many as can be)
#   tail DIR NODE ATTEMPT OFFSET MAX, ends DIR NODE ATTEMPT..., tidy DIR NODE ATTEMPT...
#
# DIR is the folder of one owner below the shared one, visible on all nodes of the cluster. It has: things/KIND.NAME (the key,
# then the caller's text), jobs/TOKEN (id, ranks), NODE/NODE/ranks/ATTEMPT. Beside the runner's files an attempt has:
# prepared (when, how long its gate waits, its grace), needs, options, sent (the script), job (its token), opened, step
# (which step of which job runs it; made once, so that it runs once), stop and limit (requests to the step).
set -u
LC_ALL=C TZ=UTC SLURM_TIME_FORMAT=standard
export LC_ALL TZ SLURM_TIME_FORMAT
usual=$(umask)
umask 077
if ! command -v scontrol >/dev/null; then # a command over SSH has no login's PATH
  # shellcheck disable=SC1091  # the login's own
  [ ! -r /etc/profile ] || . /etc/profile >/dev/null 2>&1
  PATH=$PATH:/usr/local/bin:/opt/slurm/bin:/usr/local/slurm/bin
fi
refuse() { # CODE TEXT
  printf 'FLEETFORM-ERR %s %s\n' "$1" "$2"
  exit 76
}
slurm() { # COMMAND...: its output; what it says when it fails is the refusal
  said=$("$@" 2>&1) || refuse slurm "$(printf %s "$said" | tr '\n' ' ' | head -c 600)"
}
file() { # FILE: sets text, without a fork
  text=''
  { IFS= read -r text <"$1"; } 2>/dev/null || :
}
bring() { # BYTES: from stdin, whole, as $new
  new=$dir/.new.$$
  trap 'rm -f "$new"' EXIT
  head -c "$1" >"$new" 2>/dev/null || refuse nospace "$dir"
  size=$(stat -c %s "$new")
  [ "$size" -eq "$1" ] || refuse truncated "$size of $1 bytes came"
}
things() {
  for one in "$dir"/things/*.*; do
    [ -f "$one" ] && size=$(stat -c %s "$one" 2>/dev/null) || continue
    printf '%s %s\n' "$size" "${one##*/}"
    cat "$one" || refuse unwritable "$one"
  done
}
vanished() { # KEY HOW of volumes whose folder is gone, or where a purge of old files took the witness, and so others
  for one in "$dir"/things/volume.*; do
    file "$one"
    [ "$text" ] || continue
    if [ ! -d "$dir/volumes/$text" ]; then echo "$text data"
    elif [ ! -e "$dir/volumes/$text.kept" ]; then echo "$text cleaned"; fi
  done
}
attempt() { # FOLDER NODE
  file "$1/prepared" && prepared=$text
  [ "$prepared" ] || return 0
  file "$1/needs" && needs=$text
  file "$1/job" && job=$text
  file "$1/opened" && open=$text
  file "$1/step" && step=$text
  file "$1/started" && started=$text
  file "$1/exit" && ended=$text
  file "$1/confined" && confined=${text%% *}
  file "$1/mounts" && mounts=$text
  file "$1/stop" && stop=$text
  file "$1/refused" && refused=$text
  # shellcheck disable=SC2086  # words
  set -- "$1" "$2" $started
  echo "$2|${1##*/}|$prepared|$needs|$job|$open|$step|${5-}|$ended|$confined|$mounts|$stop|$refused"
}
lock() { # FILE
  { command exec 9>>"$1"; } 2>/dev/null || refuse unwritable "$1"
  flock -w 20 9 || refuse busy "$1 is locked"
}
ended() { # CODE REASON: the attempt $attempt_dir ends here, and never had a process
  echo "$1 $2 $(date +%s)" >"$attempt_dir/exit.t" && mv "$attempt_dir/exit.t" "$attempt_dir/exit"
  rm -f "$attempt_dir/sent"
}
never() { # takes the place of the step of $attempt_dir, so that none begins
  (set -C && echo '- - -' >"$attempt_dir/step") 2>/dev/null
}
idle_job() { # cancels the job of $attempt_dir if all its ranks have ended
  file "$attempt_dir/job"
  [ "$text" ] && [ -s "$dir/jobs/$text/id" ] || return 0
  while read -r node rank; do
    [ -e "$dir/$node/$node/ranks/$rank/exit" ] || [ ! -e "$dir/$node/$node/ranks/$rank" ] || return 0
  done <"$dir/jobs/$text/ranks"
  file "$dir/jobs/$text/id"
  scancel "$text" >/dev/null 2>&1
}
siblings() { # JOB: whether a rank of it is there: one may have left the others
  while read -r node rank; do
    [ ! -e "$dir/$node/$node/ranks/$rank" ] || return 0
  done 2>/dev/null <"$dir/jobs/$1/ranks"
  return 1
}
named() { # NAME: sets id to the first job of ours with this name, and cancels the others
  slurm squeue -h -t all -u "$(id -un)" --name="$1" -o %A
  found=$(printf '%s\n' "$said" | sort -n | uniq)
  id=$(printf '%s\n' "$found" | head -n 1)
  for other in $found; do [ "$other" = "$id" ] || scancel "$other" >/dev/null 2>&1; done
}
begun() { # whether a rank of the job $one has, or has ended
  while read -r node rank; do
    [ ! -e "$dir/$node/$node/ranks/$rank/step" ] && [ ! -e "$dir/$node/$node/ranks/$rank/exit" ] || return 0
  done <"$one/ranks"
  return 1
}
lengthen() { # JOB MINUTES|-: never shortens it, for a user cannot take that back
  said=$(squeue -h -j "$1" -t all -o %l 2>/dev/null) || return 0 # Slurm has forgotten it
  case $said in [0-9]*) ;; *) return 0 ;; esac
  days=0 hours=0
  case $said in *-*) days=${said%%-*} said=${said#*-} ;; esac
  case $said in *:*:*) hours=${said%%:*} said=${said#*:} ;; esac
  minutes=${said%%:*} hours=${hours#0}
  minutes=${minutes#0} # 08 would be octal
  minutes=$((days * 1440 + ${hours:-0} * 60 + ${minutes:-0}))
  [ "$2" = - ] || [ "$2" -gt "$minutes" ] || return 0
  case $2 in -) set -- "$1" UNLIMITED ;; esac
  said=$(scontrol update "JobId=$1" "TimeLimit=$2" 2>&1) || refuse time "$1 $(printf %s "$said" | tr '\n' ' ' | head -c 300)"
}
job_state() { # ID: sets state, empty once Slurm has forgotten it
  said=$(squeue -h -j "$1" -t all -o '%T|%r|%S|%N' 2>&1) || case $said in
  *'Invalid job id'*) said='' ;;
  *) refuse slurm "$(printf %s "$said" | tr '\n' ' ')" ;;
  esac
  state=${said%%|*}
}

verb=$1 dir=$2
shift 2
case $verb in
look | seats | tail | ends | expect) ;;
*)
  mkdir -p "$dir/things" "$dir/jobs" 2>/dev/null || refuse unwritable "$dir"
  [ -z "${FLEETFORM_EPOCH-}" ] || current "$dir/.epoch"
  ;;
esac
case $verb in
look)
  echo "FLEETFORM-LOOK jobs" # before Slurm's: a job whose id came must be known to it
  for one in "$dir"/jobs/*; do
    file "$one/id"
    [ ! -d "$one" ] || echo "${one##*/} ${text:--}"
  done
  echo "FLEETFORM-LOOK queue"
  slurm squeue -h -t all -o '%A|%T|%u|%N|%r|%S|%e' && printf '%s\n' "$said"
  for kind in node partition reservation; do
    echo "FLEETFORM-LOOK $kind"
    slurm scontrol --oneliner --details show "$kind" && printf '%s\n' "$said"
  done
  echo "FLEETFORM-LOOK topology"
  scontrol --oneliner show topology 2>/dev/null
  echo "FLEETFORM-LOOK things"
  things
  echo "FLEETFORM-LOOK vanished"
  vanished
  echo "FLEETFORM-LOOK attempts"
  for one in "$dir"/*/*/ranks/*; do
    [ -d "$one" ] || continue
    node=${one%/ranks/*}
    attempt "$one" "${node##*/}"
  done
  echo "FLEETFORM-LOOK now"
  date +%s
  echo "FLEETFORM-LOOK job" # the last: any user's text is in it, with line breaks where he likes
  slurm scontrol --oneliner --details show job && printf '%s\n' "$said"
  echo FLEETFORM-END
  ;;
seats)
  echo FLEETFORM-SEATS
  for one; do attempt "$dir/${one%/*}/${one%/*}/ranks/${one#*/}" "${one%/*}"; done
  echo FLEETFORM-END
  ;;
put)
  bring "$2"
  [ -z "${3-}" ] || [ -e "$dir/things/$1" ] ||
    (mkdir -p "$dir/volumes" && true >"$3.kept" && umask "$usual" && mkdir -p "$3") 2>/dev/null || refuse unwritable "$3"
  # A link and not a rename: it cannot succeed twice.
  ln "$new" "$dir/things/$1" 2>/dev/null || [ -e "$dir/things/$1" ] || refuse unwritable "$dir cannot hold links"
  sync "$dir/things"
  printf 'FLEETFORM-THING %s\n' "$(stat -c %s "$dir/things/$1")"
  cat "$dir/things/$1"
  ;;
change)
  lock "$dir/things/.lock"
  file "$dir/things/$1"
  [ "$text" = "$2" ] || refuse lost "it is not there"
  bring "$3"
  mv -f "$new" "$dir/things/$1" || refuse unwritable "$dir"
  sync "$dir/things"
  ;;
drop)
  lock "$dir/things/.lock"
  file "$dir/things/$1"
  if [ "$text" = "$2" ]; then
    rm -f "$dir/things/$1" || refuse unwritable "$dir"
    sync "$dir/things"
  fi
  if [ "${3-}" ]; then
    rm -f "$3.kept"
    rm -rf "$3" 2>/dev/null || { chmod -R u+rwx "$3" && rm -rf "$3"; } 2>/dev/null || refuse unwritable "$3"
  fi
  left=''
  for one in "$dir"/things/*.*; do [ ! -e "$one" ] || left=1; done
  if [ -z "$left" ]; then # the last one
    rm -rf "$dir/jobs" "$dir/things" "$dir/.epoch"
    rmdir "$dir/volumes" "$dir" 2>/dev/null
  fi
  echo FLEETFORM-DROPPED
  ;;
claim) # before files are placed
  [ -e "$dir/$1/claim" ] || { mkdir -p "$dir/$1" && echo "$1" >"$dir/$1/claim"; } 2>/dev/null || refuse unwritable "$dir"
  ;;
prepare)
  node=$1 attempt_dir=$dir/$1/$1/ranks/$2
  mkdir -p "$attempt_dir" 2>/dev/null || refuse unwritable "$attempt_dir"
  if [ ! -e "$attempt_dir/prepared" ]; then
    bring "$3"
    gate=$4 grace=$5
    {
      mv "$new" "$attempt_dir/sent" && echo "$6 $7 $8 $9 ${10} ${11}" >"$attempt_dir/needs.$$" && mv "$attempt_dir/needs.$$" "$attempt_dir/needs" && shift 11 &&
        printf '%s\n' "$@" >"$attempt_dir/options.$$" && mv "$attempt_dir/options.$$" "$attempt_dir/options" &&
        echo "$(date +%s) $gate $grace" >"$attempt_dir/prepared.$$" && { ln "$attempt_dir/prepared.$$" "$attempt_dir/prepared" || [ -e "$attempt_dir/prepared" ]; } &&
        rm -f "$attempt_dir/prepared.$$"
    } 2>/dev/null || refuse nospace "$attempt_dir"
    sync "$attempt_dir"
  fi
  echo "FLEETFORM-PREPARED $node"
  ;;
submit)
  one=$dir/jobs/$1 name=$2 seconds=$3 bundle=$4
  shift 4
  mkdir -p "$one" 2>/dev/null || refuse unwritable "$dir"
  lock "$one/lock"
  ranks=''
  while [ "$1" != -- ]; do
    ranks="$ranks${1%%/*} ${1#*/}
" && shift
  done
  shift
  if [ -s "$one/id" ]; then
    file "$one/id" && id=$text
    job_state "$id"
    # The controller died before it had saved that job.
    [ "$state" ] || begun || rm -f "$one/id"
  fi
  if [ ! -s "$one/id" ]; then
    printf %s "$ranks" >"$one/ranks" || refuse nospace "$one"
    printf %s "$ranks" | while read -r node rank; do echo "${one##*/}" >"$dir/$node/$node/ranks/$rank/job"; done
    # Submitting twice makes two jobs. After an earlier try, a job of ours with this name is one whose id was lost, and
    # may appear late. Only our own jobs count: another user may use any name.
    again='' id=''
    [ ! -e "$one/tried" ] || { again=1 && named "$name"; }
    if [ -z "$id" ]; then
      true >"$one/tried" && sync "$one" || refuse nospace "$one"
      slurm sbatch --parsable --hold --job-name="$name" "$@" --wrap="exec sh $bundle @job $one"
      # A site's plugins may print text beside the id.
      [ "$again" ] || id=$(printf '%s\n' "$said" | sed -n 's/^\([0-9][0-9]*\)\(;.*\)\{0,1\}$/\1/p' | head -n 1)
      [ "$id" ] || named "$name"
      [ "$id" ] || refuse failed "Slurm took the job and does not list it"
    fi
    echo "$id" >"$one/id.t" && sync "$one/id.t" && mv "$one/id.t" "$one/id" || refuse nospace "$one"
    [ "$again" ] && job_state "$id" || said='PENDING|JobHeldUser'
  fi
  case $said in PENDING\|*Held*) slurm scontrol release "$id" && job_state "$id" ;; esac
  pause=0.03 left=$((seconds * 20))
  while [ "$state" = PENDING ] && [ "$left" -gt 0 ]; do
    sleep "$pause"
    # Slurm's scheduler works in rounds of at least a second: after two seconds, check less often.
    [ "$left" -gt $((seconds * 20 - 40)) ] && left=$((left - 1)) || pause=0.25 left=$((left - 5))
    job_state "$id"
  done
  printf 'FLEETFORM-JOB %s|%s\n' "$id" "$said"
  ;;
expect)
  said=$(sbatch --test-only "$@" --wrap=: 2>&1) || said='' # what refuses it is said when it is submitted
  printf 'FLEETFORM-EXPECT %s\n' "$(printf %s "$said" | tr '\n' ' ')"
  ;;
cancel)
  file "$dir/jobs/$1/id"
  [ -z "$text" ] || scancel "$text" >/dev/null 2>&1
  [ -z "$text" ] || for _ in 1 2 3 4 5 6 7 8 9 10; do
    job_state "$text"
    case $state in PENDING | RUNNING | COMPLETING | CONFIGURING) sleep 0.1 ;; *) break ;; esac
  done
  if [ -e "$dir/jobs/$1/ranks" ]; then
    while read -r node rank; do
      attempt_dir=$dir/$node/$node/ranks/$rank
      never && ended 143 "$2"
    done <"$dir/jobs/$1/ranks"
  fi
  echo FLEETFORM-CANCELLED
  ;;
open)
  node=$1 tries=$((50 * $2))
  shift 2
  for rank; do
    attempt_dir=$dir/$node/$node/ranks/$rank
    if [ ! -e "$attempt_dir/prepared" ] || [ -e "$attempt_dir/exit" ] || [ -e "$attempt_dir/opened" ]; then continue; fi
    read -r at gate _ <"$attempt_dir/prepared"
    if [ "$gate" != - ] && [ "$(date +%s)" -gt $((at + gate)) ]; then
      never && ended 75 gate
    else
      date +%s >"$attempt_dir/opened.t" && mv "$attempt_dir/opened.t" "$attempt_dir/opened"
    fi
  done
  for rank; do # it is there within moments, so nobody has to ask once more
    attempt_dir=$dir/$node/$node/ranks/$rank
    while [ -e "$attempt_dir/opened" ] && [ ! -e "$attempt_dir/started" ] && [ ! -e "$attempt_dir/exit" ] && [ "$tries" -gt 0 ]; do
      sleep 0.02
      tries=$((tries - 1))
    done
  done
  echo FLEETFORM-OPENED
  ;;
stop)
  attempt_dir=$dir/$1/$1/ranks/$2 grace=$3
  if [ -e "$attempt_dir/prepared" ] && [ ! -e "$attempt_dir/exit" ]; then
    echo "$grace" >"$attempt_dir/stop.t" && mv "$attempt_dir/stop.t" "$attempt_dir/stop"
    if never; then
      ended 143 stopped
    else
      tries=$((grace * 10 + 100))
      while [ ! -e "$attempt_dir/exit" ] && [ "$tries" -gt 0 ]; do
        sleep 0.1
        tries=$((tries - 1))
        [ $((tries % 10)) -eq 0 ] || continue
        read -r job _ <"$attempt_dir/step"
        job_state "${job%%.*}"
        case $state in RUNNING | COMPLETING | CONFIGURING | SUSPENDED | STOPPED | SIGNALING | STAGE_OUT) ;; *) sleep 1 && break ;; esac
      done
      if [ ! -e "$attempt_dir/exit" ]; then
        read -r job _ <"$attempt_dir/step"
        [ -z "$state" ] || { scancel "$job" >/dev/null 2>&1 && sleep 1; }
        [ -e "$attempt_dir/exit" ] || ended 137 stopped
      fi
    fi
    idle_job
  fi
  echo FLEETFORM-STOPPED
  ;;
limit)
  attempt_dir=$dir/$1/$1/ranks/$2
  if [ -e "$attempt_dir/prepared" ] && [ ! -e "$attempt_dir/exit" ]; then echo "$3" >"$attempt_dir/limit.t" && mv "$attempt_dir/limit.t" "$attempt_dir/limit"; fi
  tries=50
  while [ -e "$attempt_dir/limit" ] && [ -e "$attempt_dir/step" ] && [ ! -e "$attempt_dir/exit" ] && [ "$tries" -gt 0 ]; do
    sleep 0.1
    tries=$((tries - 1))
  done
  echo FLEETFORM-LIMITED
  ;;
adjust)
  attempt_dir=$dir/$1/$1/ranks/$2
  if [ -e "$attempt_dir/prepared" ] && [ ! -e "$attempt_dir/exit" ]; then
    file "$attempt_dir/job"
    file "$dir/jobs/${text:--}/id"
    read -r _ _ _ _ limit _ <"$attempt_dir/needs"
    [ -z "$text" ] || [ "$limit$4" = -- ] || lengthen "$text" "$4" # it was asked for without a limit
    { echo "$3" >"$attempt_dir/grace.t" && mv "$attempt_dir/grace.t" "$attempt_dir/grace"; } 2>/dev/null || refuse nospace "$attempt_dir"
  fi
  echo FLEETFORM-ADJUSTED
  ;;
tail)
  log=$dir/$1/$1/ranks/$2/log
  count=$(($(stat -c %s "$log" 2>/dev/null || echo 0) - $3))
  [ "$count" -ge 0 ] || count=0
  [ "$count" -le "$4" ] || count=$4
  echo "FLEETFORM-LOG $count"
  [ "$count" -eq 0 ] || tail -c "+$(($3 + 1))" "$log" | head -c "$count"
  ;;
ends)
  node=$1
  shift
  now=$(date +%s)
  echo FLEETFORM-LOGS
  for rank; do
    seen=$(stat -c '%s %Y' "$dir/$node/$node/ranks/$rank/log" 2>/dev/null) || continue
    echo "$rank ${seen% *} $((now - ${seen#* }))"
  done
  echo FLEETFORM-END
  ;;
tidy)
  node=$1
  shift
  for rank; do
    attempt_dir=$dir/$node/$node
    [ -e "$attempt_dir/ranks/$rank/exit" ] || continue
    file "$attempt_dir/ranks/$rank/job"
    mv "$attempt_dir/ranks/$rank" "$attempt_dir/.$rank" # at once: the job looks whether it has ended
    rm -rf "$attempt_dir/.$rank" "$attempt_dir/hosts/$rank" "$attempt_dir/files/use/$rank"
    rm -rf "$attempt_dir/work/$rank" 2>/dev/null || { chmod -R u+rwx "$attempt_dir/work/$rank" && rm -rf "$attempt_dir/work/$rank"; } 2>/dev/null
    [ -z "$text" ] || siblings "$text" || rm -rf "$dir/jobs/$text"
  done
  echo FLEETFORM-TIDY
  ;;
esac
