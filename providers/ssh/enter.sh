# Says where this user's state folder is, which CPUs he may use, and whether a script is there, whole.
# Arguments: the folder, or nothing for the usual one; the script's name; its SHA-256.
root=${1:-/var/tmp/fleetform-$(id -u)} # not below /tmp: exit codes have to outlive a reboot
echo FLEETFORM-ENTER
echo "root=$root"
echo "cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"
{ sum=$(sha256sum <"$root/bin/$2"); } 2>/dev/null && [ "${sum%% *}" = "$3" ] && [ -O "$root" ] && echo have=1
echo FLEETFORM-END
