# shellcheck shell=bash
# Writes the configuration of each service to $C. Sourced by up.sh, which sets what is used here.

db() { echo "mysql+pymysql://root@localhost/$1?unix_socket=$RUN/mysql.sock&charset=utf8"; }
AMQ="rabbit://guest:guest@127.0.0.1:$P_AMQ//"
creds() {
  cat <<END
auth_type = password
auth_url = http://127.0.0.1:$P_KEY/v3
username = $1
password = $PASSWORD
project_name = service
user_domain_name = Default
project_domain_name = Default
END
}
authtoken() { # user, type of its service
  cat <<END
[keystone_authtoken]
www_authenticate_uri = http://127.0.0.1:$P_KEY/v3
service_token_roles_required = true
service_token_roles = service
service_type = $2
region_name = $REGION
$(creds "$1")
END
}
common() {
  cat <<END
[oslo_concurrency]
lock_path = $RUN/lock
[oslo_messaging_notifications]
driver = noop
[oslo_messaging_rabbit]
heartbeat_timeout_threshold = 0
[service_user]
send_service_user_token = true
region_name = $REGION
$(creds "$1")
END
}
database() { printf '[%s]\nconnection = %s\nmax_pool_size = 5\n' "$1" "$(db "$2")"; }

cat >"$C/keystone.conf" <<END
[DEFAULT]
log_file = $RUN/logs/keystone.log
$(database database keystone)
[fernet_tokens]
key_repository = $RUN/keys/fernet
[credential]
key_repository = $RUN/keys/cred
[token]
expiration = 86400
[cache]
enabled = true
backend = dogpile.cache.memory
END

cat >"$C/glance-api.conf" <<END
[DEFAULT]
log_file = $RUN/logs/glance.log
enabled_backends = fs:file
$(database database glance)
[glance_store]
default_backend = fs
[fs]
filesystem_store_datadir = $RUN/images
[os_glance_staging_store]
filesystem_store_datadir = $RUN/staging
[os_glance_tasks_store]
filesystem_store_datadir = $RUN/tasks
[paste_deploy]
flavor = keystone
config_file = $HOME_OF/venv/etc/glance/glance-api-paste.ini
$(authtoken glance image)
$(common glance)
END

cat >"$C/placement.conf" <<END
[DEFAULT]
log_file = $RUN/logs/placement.log
$(database placement_database placement)
[api]
auth_strategy = keystone
$(authtoken placement placement)
END

cat >"$C/neutron.conf" <<END
[DEFAULT]
log_file = $RUN/logs/neutron.log
core_plugin = ml2
service_plugins = router
transport_url = $AMQ
state_path = $RUN/neutron
api_paste_config = $HOME_OF/venv/etc/neutron/api-paste.ini
dhcp_agent_notification = false
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
$(database database neutron)
[ml2]
type_drivers = local
tenant_network_types = local
mechanism_drivers = bindanything
[securitygroup]
enable_security_group = true
$(authtoken neutron network)
$(common neutron)
END

# Pages are short, so that whoever lists has to turn them.
cat >"$C/cinder.conf" <<END
[DEFAULT]
log_dir = $RUN/logs
transport_url = $AMQ
my_ip = 127.0.0.1
state_path = $RUN/cinder
auth_strategy = keystone
api_paste_config = $HOME_OF/venv/etc/cinder/api-paste.ini
resource_query_filters_file = $HOME_OF/venv/etc/cinder/resource_filters.json
enabled_backends = fake
default_volume_type = fake
glance_api_servers = http://127.0.0.1:$P_GLA
periodic_interval = 10
osapi_max_limit = 5
[fake]
volume_driver = fakedisks.Disks
volume_backend_name = fake
$(database database cinder)
[key_manager]
backend = cinder.keymgr.conf_key_mgr.ConfKeyManager
fixed_key = 0000000000000000000000000000000000000000000000000000000000000000
$(authtoken cinder block-storage)
$(common cinder)
END

# What the host is said to have of GPUs, so that placement counts them.
mkdir -p "$C/providers"
cat >"$C/providers/gpus.yaml" <<END
meta:
  schema_version: '1.0'
providers:
  - identification:
      uuid: \$COMPUTE_NODE
    inventories:
      additional:
        - CUSTOM_GPU_H100:
            total: 64
END

cat >"$C/nova.conf" <<END
[DEFAULT]
log_dir = $RUN/logs
transport_url = $AMQ
my_ip = 127.0.0.1
state_path = $RUN/nova
compute_driver = fake.FakeDriver
host = fakehost
sync_power_state_interval = -1
[api]
auth_strategy = keystone
max_limit = 5
[compute]
provider_config_location = $C/providers
[wsgi]
api_paste_config = $HOME_OF/venv/etc/nova/api-paste.ini
$(database database nova)
$(database api_database nova_api)
[vnc]
enabled = false
[conductor]
workers = 1
[scheduler]
workers = 1
discover_hosts_in_cells_interval = 5
[glance]
api_servers = http://127.0.0.1:$P_GLA
[cinder]
catalog_info = volumev3::publicURL
os_region_name = $REGION
$(creds nova)
[placement]
region_name = $REGION
$(creds nova)
[neutron]
region_name = $REGION
$(creds nova)
$(authtoken nova compute)
$(common nova)
END
