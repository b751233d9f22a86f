#!/bin/bash
# Starts an OpenStack on 127.0.0.1: keystone, glance, placement, neutron, cinder and nova as they are, over a
# hypervisor and a volume driver that only pretend. Each start is a new cloud: its databases, migrated and
# filled, come from a template, which the first start makes (some minutes).
#   --fresh   make the template anew
# down.sh stops it. install.sh must have run once. The ports are fixed, so one cloud per machine.
set -euo pipefail
. "$(dirname "$0")/common.sh"
REGION=RegionOne PASSWORD=secret
P_KEY=5000 P_GLA=9292 P_PLA=8778 P_NEU=9696 P_CIN=8776 P_NOV=8774 P_AMQ=5672
[ -x "$BIN/nova-compute" ] || { echo "run install.sh first"; exit 1; }

"$HERE/down.sh"
[ "${1:-}" = --fresh ] && rm -rf "$TEMPLATE"
rm -rf "$RUN"
mkdir -p "$RUN"/{conf,db,logs,pids,lock,keys/fernet,keys/cred,rabbit,images,staging,tasks,nova,cinder,neutron}
C=$RUN/conf
. "$HERE/configure.sh"
SEED=
[ -f "$TEMPLATE/done" ] || SEED=1

# Each in a session of its own, with its process id where down.sh looks.
start() { # name, command
  local name=$1; shift
  setsid "$@" >"$RUN/logs/$name.out" 2>&1 </dev/null &
  echo $! >"$RUN/pids/$name.pid"
}
serve() { # name, module, port, processes, what the module reads as its arguments, environment
  local name=$1 module=$2 port=$3 processes=$4 words=$5; shift 5
  start "$name" env "$@" "$BIN/uwsgi" --http-socket "127.0.0.1:$port" --module "$module:application" \
    --master --processes "$processes" --threads 1 --lazy-apps --enable-threads --die-on-term \
    --buffer-size 65535 --http-chunked-input --add-header "Connection: close" --need-app \
    --disable-logging ${words:+--pyargv "$words"}
}
answers() { # name, port
  for _ in $(seq 1 1200); do
    case $(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$2/") in
      2* | 3* | 401) say "$1 answers"; return ;;
    esac
    kill -0 "$(cat "$RUN/pids/$1.pid")" 2>/dev/null || break
    sleep 0.25
  done
  say "$1 does not answer"; tail -20 "$RUN/logs/$1.out"; exit 1
}
sql() { mariadb --no-defaults -uroot -S "$RUN/mysql.sock" "$@"; }

# RabbitMQ itself: Debian's wrapper wants its own user and /var/lib. epmd by hand, so that down.sh ends it too.
start epmd env ERL_EPMD_ADDRESS=127.0.0.1 epmd
start rabbit env HOME="$RUN/rabbit" RABBITMQ_NODENAME=fleetform@localhost \
  RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT=$P_AMQ RABBITMQ_DIST_PORT=25672 \
  RABBITMQ_MNESIA_BASE="$RUN/rabbit/mnesia" RABBITMQ_LOG_BASE="$RUN/logs" RABBITMQ_CONF_ENV_FILE=/dev/null \
  RABBITMQ_ENABLED_PLUGINS_FILE=/dev/null ERL_EPMD_ADDRESS=127.0.0.1 \
  RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+sbwt none +sbwtdcpu none +sbwtdio none +S 1:1 -kernel inet_dist_use_interface {127,0,0,1}" \
  /usr/lib/rabbitmq/bin/rabbitmq-server

if [ $SEED ]; then
  mariadb-install-db --no-defaults --user=root --datadir="$RUN/db" --auth-root-authentication-method=normal \
    --skip-test-db >"$RUN/logs/mariadb-install.log" 2>&1
else
  cp -r "$TEMPLATE"/{db,keys,images} "$RUN/"
fi
start mariadb /usr/sbin/mariadbd --no-defaults --user=root --datadir="$RUN/db" --socket="$RUN/mysql.sock" \
  --skip-networking --pid-file="$RUN/db/mariadb.pid" --innodb-buffer-pool-size=96M --innodb-log-file-size=32M \
  --innodb-flush-log-at-trx-commit=0 --innodb-flush-method=nosync --performance-schema=OFF \
  --max-connections=300 --character-set-server=utf8mb3 --key-buffer-size=1M --aria-pagecache-buffer-size=8M
for _ in $(seq 1 240); do sql -e 'select 1' >/dev/null 2>&1 && break; sleep 0.25; done
say "MariaDB answers"

if [ $SEED ]; then
  for name in keystone glance placement neutron cinder nova nova_api nova_cell0; do
    sql -e "CREATE DATABASE $name"
  done
  (
    set -e
    "$BIN/keystone-manage" --config-file "$C/keystone.conf" db_sync
    "$BIN/glance-manage" --config-file "$C/glance-api.conf" db_sync
    "$BIN/placement-manage" --config-file "$C/placement.conf" db sync
    "$BIN/cinder-manage" --config-file "$C/cinder.conf" db sync
  ) >"$RUN/logs/migrations" 2>&1 & one=$!
  (
    set -e
    "$BIN/nova-manage" --config-file "$C/nova.conf" api_db sync
    "$BIN/nova-manage" --config-file "$C/nova.conf" cell_v2 map_cell0 --database_connection "$(db nova_cell0)"
    "$BIN/nova-manage" --config-file "$C/nova.conf" cell_v2 create_cell --name cell1 \
      --transport-url "$AMQ" --database_connection "$(db nova)"
    "$BIN/nova-manage" --config-file "$C/nova.conf" db sync
    # neutron: tables from its models, as its migrations take long.
    cd "$RUN"
    "$BIN/python" - "$(db neutron)" <<'END'
import sys, sqlalchemy
from neutron.db.migration.models import head
head.get_metadata().create_all(sqlalchemy.create_engine(sys.argv[1]))
END
    "$BIN/neutron-db-manage" --config-file "$C/neutron.conf" stamp heads
  ) >"$RUN/logs/migrations.nova" 2>&1 & two=$!
  for job in $one $two; do
    wait "$job" || { echo "a migration failed: see $RUN/logs/migrations*"; exit 1; }
  done
  keystone() { "$BIN/keystone-manage" --config-file "$C/keystone.conf" "$@" 2>>"$RUN/logs/keystone-manage.log"; }
  keystone fernet_setup --keystone-user root --keystone-group root
  keystone credential_setup --keystone-user root --keystone-group root
  keystone bootstrap --bootstrap-password $PASSWORD --bootstrap-region-id $REGION \
    --bootstrap-admin-url http://127.0.0.1:$P_KEY/v3 --bootstrap-internal-url http://127.0.0.1:$P_KEY/v3 \
    --bootstrap-public-url http://127.0.0.1:$P_KEY/v3
  say "databases migrated"
fi

serve keystone keystone.wsgi.api $P_KEY 2 "" OS_KEYSTONE_CONFIG_FILES="$C/keystone.conf"
answers keystone $P_KEY
if [ $SEED ]; then
  PORTS="$P_KEY $P_GLA $P_PLA $P_NEU $P_CIN $P_NOV" "$BIN/python" "$HERE/seed.py" identity $REGION $PASSWORD
fi
serve glance glance.wsgi.api $P_GLA 1 "" OS_GLANCE_CONFIG_DIR="$C"
serve placement placement.wsgi.api $P_PLA 1 "" OS_PLACEMENT_CONFIG_DIR="$C"
serve neutron neutron.wsgi.api $P_NEU 1 "--config-file $C/neutron.conf" \
  OS_NEUTRON_CONFIG_DIR="$C" OS_NEUTRON_CONFIG_FILES=neutron.conf
for _ in $(seq 1 240); do (command exec 3<>/dev/tcp/127.0.0.1/$P_AMQ) 2>/dev/null && break; sleep 0.5; done
say "RabbitMQ listens"
start nova-conductor "$BIN/nova-conductor" --config-file "$C/nova.conf"
start nova-scheduler "$BIN/nova-scheduler" --config-file "$C/nova.conf"
serve cinder cinder.wsgi.api $P_CIN 1 "--config-file $C/cinder.conf --log-file $RUN/logs/cinder-api.log"
start cinder-scheduler "$BIN/cinder-scheduler" --config-file "$C/cinder.conf"
start cinder-volume "$BIN/cinder-volume" --config-file "$C/cinder.conf"
cp "$HOME_OF/venv/etc/nova/api-paste.ini" "$C/nova-api-paste.ini" # has to be the first of the files
serve nova nova.wsgi.osapi_compute $P_NOV 2 "--log-file $RUN/logs/nova-api.log" \
  OS_NOVA_CONFIG_DIR="$C" "OS_NOVA_CONFIG_FILES=nova-api-paste.ini;nova.conf"
[ $SEED ] || start nova-compute "$BIN/nova-compute" --config-file "$C/nova.conf"
answers glance $P_GLA
answers placement $P_PLA
answers neutron $P_NEU
answers cinder $P_CIN
answers nova $P_NOV

if [ $SEED ]; then
  # Kept before the first start of nova-compute: with the driver that pretends, it starts once in its life.
  "$BIN/python" "$HERE/seed.py" cloud $REGION $PASSWORD
  "$HERE/down.sh"
  mkdir -p "$TEMPLATE"
  cp -r "$RUN"/{db,keys,images} "$TEMPLATE/"
  touch "$TEMPLATE/done"
  say "the template is made; starting from it"
  exec "$HERE/up.sh"
fi
"$BIN/python" "$HERE/seed.py" ready $REGION $PASSWORD
say "ready: http://127.0.0.1:$P_KEY, user demo, password $PASSWORD, project demo, region $REGION"
