# Says how long the logs of attempts are, and for how many seconds nothing was written to them.
# Arguments: the folder of all attempts; their ids.
cd "$1" 2>/dev/null || cd /
shift
echo FLEETFORM-LOGS
now=$(date +%s)
for id; do
  { line=$(stat -c '%s %Y' -- "$id/log"); } 2>/dev/null && echo "$id ${line% *} $((now - ${line#* }))"
done
echo FLEETFORM-END
