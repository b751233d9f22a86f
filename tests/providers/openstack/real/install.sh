#!/bin/bash
# Installs what up.sh needs: RabbitMQ and MariaDB from Debian, OpenStack 2025.1 from PyPI.
# Needs root, Debian 12 or one like it, Python 3.11; about a minute.
set -euo pipefail
. "$(dirname "$0")/common.sh"

need=()
command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] || need+=(mariadb-server-core mariadb-client-core)
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || need+=(rabbitmq-server)
command -v cc >/dev/null || need+=(build-essential python3-dev) # uwsgi is compiled
command -v curl >/dev/null || need+=(curl)
python3 -c 'import ensurepip' 2>/dev/null || need+=(python3-venv)
if [ ${#need[@]} -gt 0 ]; then
  apt-get update
  # RabbitMQ's package starts it as a service, at the port of ours.
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${need[@]}"
  if [ -d /run/systemd/system ]; then systemctl disable --now rabbitmq-server || true; fi
fi

mkdir -p "$HOME_OF"
[ -x "$BIN/python" ] || python3 -m venv "$HOME_OF/venv"
[ -x "$BIN/uv" ] || "$BIN/pip" install -q uv
# OpenStack 2025.1 within its own upper constraints, and all that it needs.
"$BIN/uv" pip install --python "$BIN/python" -r "$HERE/requirements.lock"
rm -rf "$HOME_OF/fakebits" # a copy: what is built leaves things behind
cp -r "$HERE/fakebits" "$HOME_OF/"
"$BIN/uv" pip install --python "$BIN/python" --reinstall "$HOME_OF/fakebits"
say "installed in $HOME_OF"
