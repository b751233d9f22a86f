"""Fills the cloud of up.sh: `seed.py identity|cloud|ready REGION PASSWORD`. Runs in install.sh's venv."""

import os
import sys
import time

import openstack

WHAT, REGION, PASSWORD = sys.argv[1:4]
FLAVORS = (
    # name, CPUs, MiB, GB, extra specs
    ("m1.tiny", 1, 512, 1, {}),
    ("m1.large", 4, 8192, 80, {}),
    ("m1.huge", 64, 262144, 1000, {}),
    ("gpu.h100x2", 4, 4096, 1, {"resources:CUSTOM_GPU_H100": "2"}),
    ("gpu.a100x2", 4, 4096, 1, {"resources:CUSTOM_GPU_A100": "2"}),  # no host has these
)
admin = openstack.connect(
    auth_url="http://127.0.0.1:5000/v3",
    username="admin",
    password=PASSWORD,
    project_name="admin",
    user_domain_name="Default",
    project_domain_name="Default",
    region_name=REGION,
)


def identity():
    """Users, projects and the catalog of services."""
    keystone = admin.identity
    _, glance, placement, neutron, cinder, nova = os.environ["PORTS"].split()
    roles = {role.name: role for role in keystone.roles()}
    service = keystone.create_project(name="service", domain_id="default")
    for name in ("glance", "placement", "neutron", "cinder", "nova"):
        user = keystone.create_user(
            name=name, password=PASSWORD, default_project_id=service.id, domain_id="default"
        )
        for role in ("admin", "service"):
            keystone.assign_project_role_to_user(service, user, roles[role])
    for name in ("demo", "small"):
        project = keystone.create_project(name=name, domain_id="default")
        user = keystone.create_user(
            name=name, password=PASSWORD, default_project_id=project.id, domain_id="default"
        )
        keystone.assign_project_role_to_user(project, user, roles["member"])
    for kind, name, port, path in (
        ("image", "glance", glance, ""),
        ("placement", "placement", placement, ""),
        ("network", "neutron", neutron, ""),
        ("block-storage", "cinder", cinder, "/v3/$(project_id)s"),
        ("volumev3", "cinderv3", cinder, "/v3/$(project_id)s"),  # nova asks for this one
        ("compute", "nova", nova, "/v2.1"),
    ):
        made = keystone.create_service(type=kind, name=name)
        for interface in ("public", "internal", "admin"):
            url = f"http://127.0.0.1:{port}{path}"
            keystone.create_endpoint(service_id=made.id, interface=interface, url=url, region_id=REGION)


def cloud():
    """Flavors, images, networks. `demo` may have 60 nodes and volumes, `small` the 10 that are usual."""
    for name, cpus, memory, disk, specs in FLAVORS:
        flavor = admin.compute.create_flavor(name=name, vcpus=cpus, ram=memory, disk=disk)
        if specs:
            admin.compute.create_flavor_extra_specs(flavor, specs)
    for name in ("debian-12", "twice", "twice"):
        admin.image.create_image(
            name=name,
            disk_format="raw",
            container_format="bare",
            visibility="public",
            data=b"\0" * 65536,
            min_disk=1,
        )
    shared = admin.network.create_network(name="shared", shared=True)
    inside = admin.network.create_subnet(
        network_id=shared.id, ip_version=4, cidr="10.20.0.0/16", name="shared4"
    )
    outside = admin.network.create_network(name="public", is_router_external=True)
    admin.network.create_subnet(
        network_id=outside.id, ip_version=4, cidr="203.0.113.0/24", name="public4", is_dhcp_enabled=False
    )
    router = admin.network.create_router(name="gate", external_gateway_info={"network_id": outside.id})
    admin.network.add_interface_to_router(router, subnet_id=inside.id)
    admin.block_storage.create_type(name="fake", extra_specs={"volume_backend_name": "fake"})
    demo = admin.identity.find_project("demo").id
    admin.compute.update_quota_set(demo, instances=60, cores=200, ram=400000)
    admin.block_storage.update_quota_set(demo, volumes=60, gigabytes=1000)


def ready():
    """Wait for the services that report by themselves."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        computes = [s for s in admin.compute.services() if s.binary == "nova-compute" and s.state == "up"]
        disks = [s for s in admin.block_storage.services() if s.binary == "cinder-volume" and s.state == "up"]
        if computes and disks and list(admin.compute.hypervisors()):
            return
        time.sleep(0.5)
    sys.exit("nova-compute or cinder-volume did not come up")


{"identity": identity, "cloud": cloud, "ready": ready}[WHAT]()
