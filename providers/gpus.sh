# shellcheck shell=sh
# The GPUs of a rank: which numbers they have on this host now. What is recorded of a GPU is its UUID, for numbers change
# with the cards in a machine; what programs get is a number, for many read integers. Functions only; a part of what
# the runner launches.
# Sets answer to what a tool prints, and fault if that may not be all; that of an earlier query stays. Fails if it gives
# no answer. It is asked three times, and given longer: where nothing keeps a driver loaded, each query begins with its
# start.
answers() { # TOOL ARGUMENT...
  earlier=$fault
  for seconds in 10 15 30; do
    answer=$(timeout -k 1 $seconds "$@" 2>&1)
    code=$?
    case $code in
    0) fault=$earlier && return 0 ;;
    124 | 137) fault="$1 gave no answer within $seconds s" ;;
    *) fault="$1 gave exit code $code: $(printf '%s\n' "$answer" | tail -n 1)" && return 0 ;;
    esac
  done
  return 1
}
numbers() { # ID...: sets known to a line NUMBER UUID NAME for each GPU; NAME is what container runtimes call it. Fails
  # if nothing is known of them, with the reason in fault
  if command -v nvidia-smi >/dev/null; then
    answers nvidia-smi --query-gpu=index,uuid --format=csv,noheader || return 1
    known=$(printf '%s\n' "$answer" | sed -n 's/^ *\([0-9][0-9]*\), *\([^ ,]*\).*/\1 \2 \1/p')
    case $* in
    *MIG-*)
      answers nvidia-smi -L || return 1
      known="$known
$(printf '%s\n' "$answer" | instances)"
      ;;
    esac
  elif command -v rocm-smi >/dev/null; then
    answers rocm-smi --showuniqueid --csv || return 1
    known=$(printf '%s\n' "$answer" | sed -n 's/^card\([0-9]*\),\(0x[0-9A-Fa-f]*\).*/\1 \2 \1/p')
  else
    fault='there is neither nvidia-smi nor rocm-smi'
  fi
  [ -z "$fault" ] || [ -n "$known" ]
}
instances() { # of MIG, from the output of `nvidia-smi -L`; CUDA knows them by UUID alone
  while read -r kind first _ number _ uuid _; do
    case $kind in
    GPU) card=${first%:} ;;
    MIG) echo "${uuid%)} ${uuid%)} $card:${number%:}" ;;
    esac
  done
}
of_amd() {
  if command -v nvidia-smi >/dev/null || [ -e /dev/nvidiactl ]; then return 1; fi
  command -v rocm-smi >/dev/null || [ -e /dev/kfd ]
}
unknown() { # TEXT: ends the rank; a fault of the host, which may pass
  echo "fleetform: $1" >&2
  echo unknown-gpus >"$FLEETFORM_RUN/why"
  exit 125
}
# ID...: UUIDs, or numbers where none are recorded. Sets `visible` for programs and `named` for container runtimes; ends
# the rank if the host does not have one of them.
devices() {
  visible='' named='' counted='' known='' fault=''
  for id; do
    case $id in
    *[!0-9]*)
      [ -n "$known" ] || numbers "$@" || unknown "$fault: which number GPU $id has is not known now"
      number=$(printf '%s\n' "$known" | while read -r each uuid name; do
        [ "$uuid" != "$id" ] || echo "$each $name"
      done)
      if [ -z "$number" ]; then
        [ -z "$fault" ] || unknown "$fault: whether this host has GPU $id is not known now" # those listed may not be all
        echo "fleetform: this host does not have GPU $id now, which is recorded of it" >&2
        echo gpus >"$FLEETFORM_RUN/why"
        exit 125
      fi
      ;;
    *) number="$id $id" ;;
    esac
    counted=$counted${counted:+,}$((${#counted} ? ${counted##*,} + 1 : 0))
    visible=$visible${visible:+,}${number% *} named=$named${named:+,}${number#* }
  done
}
exports() { # the variables of a rank, as shell
  echo 'export CUDA_DEVICE_ORDER=PCI_BUS_ID'
  if of_amd; then # HIP counts within what ROCm shows it
    echo "export ROCR_VISIBLE_DEVICES=$visible CUDA_VISIBLE_DEVICES=$counted"
  else
    echo "export CUDA_VISIBLE_DEVICES=$visible"
  fi
}
