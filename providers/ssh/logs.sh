# shellcheck shell=sh
# Prints the size of the logs of attempts, and the seconds since the last write.
# Arguments: the folder of all attempts; their ids.
cd "$1" 2>/dev/null || cd /
shift
echo FLEETFORM-LOGS
now=$(date +%s)
for id; do
  { line=$(stat -c '%s %Y' -- "$id/log"); } 2>/dev/null && echo "$id ${line% *} $((now - ${line#* }))"
done
echo FLEETFORM-END
