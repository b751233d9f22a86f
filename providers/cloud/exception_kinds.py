"""What is raised where there is no answer to go by, by its class, as the port's kinds.

Every exception of libcloud's `common` and `compute` stands here: a test names the one that is missing. Most
of them say no more than that something went wrong, and then it is not known what was done.
"""

from __future__ import annotations

from collections.abc import Mapping

from declarative.provider import PermanentKind, TransientKind

Kind = TransientKind | PermanentKind

_NOTHING_KNOWN = """
    requests.exceptions.RequestException builtins.OSError
    http.client.HTTPException urllib3.exceptions.HTTPError

    libcloud.common.azure.AzureRedirectException
    libcloud.common.buddyns.BuddyNSException
    libcloud.common.digitalocean.DigitalOcean_v1_Error
    libcloud.common.dimensiondata.DimensionDataAPIException
    libcloud.common.dnspod.DNSPodException
    libcloud.common.durabledns.DurableDNSException
    libcloud.common.exceptions.BaseHTTPError
    libcloud.common.gandi.GandiException
    libcloud.common.gandi_live.GandiLiveBaseError
    libcloud.common.gandi_live.JsonParseError
    libcloud.common.google.GoogleBaseError
    libcloud.common.google.JsonParseError
    libcloud.common.kubernetes.KubernetesException
    libcloud.common.linode.LinodeException
    libcloud.common.linode.LinodeExceptionV4
    libcloud.common.liquidweb.APIException
    libcloud.common.liquidweb.LiquidWebException
    libcloud.common.luadns.LuadnsException
    libcloud.common.nfsn.NFSNException
    libcloud.common.nsone.NsOneException
    libcloud.common.nttcis.NttCisAPIException
    libcloud.common.openstack.OpenStackException
    libcloud.common.ovh.OvhException
    libcloud.common.types.LibcloudError
    libcloud.common.types.MalformedResponseError
    libcloud.common.types.ProviderError
    libcloud.common.types.ServiceUnavailableError
    libcloud.common.upcloud.UpcloudTimeoutException
    libcloud.common.vultr.VultrException
    libcloud.common.worldwidedns.CouldntReachNameServer
    libcloud.common.worldwidedns.CouldntRemoveDomain
    libcloud.common.worldwidedns.ErrorOnReloadInNameServer
    libcloud.common.worldwidedns.WorldWideDNSException
    libcloud.common.xmlrpc.ProtocolError
    libcloud.common.zonomi.ZonomiException
    libcloud.compute.drivers.cloudsigma.CloudSigmaError
    libcloud.compute.drivers.cloudsigma.CloudSigmaException
    libcloud.compute.drivers.gig_g8.G8ProvisionError
    libcloud.compute.drivers.rimuhosting.RimuHostingException
    libcloud.compute.drivers.vsphere.VSphereException
    libcloud.compute.ssh.SSHCommandTimeoutError
    libcloud.compute.types.DeploymentError
    libcloud.utils.iso8601.ParseError
    libcloud.utils.retry.TransientSSLError
"""

_CLASSES: Mapping[Kind, str] = {
    TransientKind.AMBIGUOUS: _NOTHING_KNOWN,
    # Before anything was sent.
    TransientKind.NOT_SENT: """
        requests.exceptions.ConnectTimeout socket.gaierror builtins.ConnectionRefusedError
    """,
    TransientKind.THROTTLED: "libcloud.common.exceptions.RateLimitReachedError",
    TransientKind.BUSY: "libcloud.common.google.ResourceInUseError",
    PermanentKind.QUOTA: """
        libcloud.common.google.QuotaExceededError
        libcloud.common.worldwidedns.LimitExceeded
        libcloud.compute.drivers.cloudsigma.CloudSigmaInsufficientFundsException
    """,
    PermanentKind.AUTH: """
        libcloud.common.abiquo.ForbiddenError
        libcloud.common.google.GoogleAuthError
        libcloud.common.types.InvalidCredsError
        libcloud.common.worldwidedns.DomainBanned
        libcloud.common.worldwidedns.LoginOrPasswordNotMatch
        libcloud.common.worldwidedns.NewUserNotValid
        libcloud.common.worldwidedns.SuspendedAccount
    """,
    PermanentKind.NOT_FOUND: """
        libcloud.common.gandi_live.ResourceNotFoundError
        libcloud.common.google.ResourceNotFoundError
        libcloud.common.worldwidedns.NonExistentDomain
        libcloud.common.worldwidedns.NoZoneFile
        libcloud.compute.types.KeyPairDoesNotExistError
    """,
    PermanentKind.CONFLICT: """
        libcloud.common.gandi_live.ResourceConflictError
        libcloud.common.google.ResourceExistsError
        libcloud.common.worldwidedns.ExistentDomain
        libcloud.compute.drivers.ec2.IdempotentParamError
    """,
    PermanentKind.INVALID: """
        requests.exceptions.InvalidURL requests.exceptions.InvalidSchema
        requests.exceptions.MissingSchema requests.exceptions.InvalidProxyURL
        libcloud.common.gandi_live.InvalidRequestError
        libcloud.common.google.InvalidRequestError
        libcloud.common.worldwidedns.InvalidDomainName
        libcloud.compute.types.KeyPairError
    """,
}

BY_CLASS: Mapping[str, Kind] = {name: kind for kind, names in _CLASSES.items() for name in names.split()}
"""By the full name of a class, or of the nearest class above it. Where no name is known libcloud stumbled
over an answer (`KeyError`, `AttributeError`, …): the request had been carried out.
"""


def kind_of(error: BaseException) -> Kind:
    """What was raised."""
    known = (BY_CLASS.get(f"{c.__module__}.{c.__qualname__}") for c in type(error).__mro__)
    return next((kind for kind in known if kind), TransientKind.AMBIGUOUS)


def said_by_libcloud(error: BaseException) -> bool:
    """Whether the class itself is libcloud's: then it was read out of an answer."""
    return f"{type(error).__module__}.{type(error).__qualname__}" in BY_CLASS and (
        type(error).__module__.startswith("libcloud.")
    )
