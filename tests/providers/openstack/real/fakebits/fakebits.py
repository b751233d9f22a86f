"""A mechanism driver of neutron's ML2 that binds every port on every host, with no agent.

For a control plane whose nova-compute only pretends: there is nothing to plug, so the first segment will do.
"""

from neutron_lib import constants
from neutron_lib.api.definitions import portbindings
from neutron_lib.plugins.ml2 import api


class BindAnything(api.MechanismDriver):
    def initialize(self):
        self.vif_details = {portbindings.CAP_PORT_FILTER: False}

    @property
    def connectivity(self):
        return portbindings.CONNECTIVITY_L2

    def bind_port(self, context):
        for segment in context.segments_to_bind:
            context.set_binding(
                segment[api.ID],
                portbindings.VIF_TYPE_OTHER,
                self.vif_details,
                status=constants.PORT_STATUS_ACTIVE,
            )
            return
