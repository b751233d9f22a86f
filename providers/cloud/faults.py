"""Turns what goes wrong between here and a cloud into the port's two kinds of fault.

There are three sources, the most precise first: the code in a cloud's error (each driver has its own table),
the status of the last answer, and the class of the exception. libcloud often drops the first two, so both are
read from the answer itself. Errors without codes are JSON with a text, and words in the text decide on the
kind.

Every exception of libcloud's `common` and `compute` is listed here; a test reports missing ones. Most of them
say only that something went wrong, so the result of the request is unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import urlsplit

from declarative.model.record import struct
from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind
from providers.cloud.bad_answers import Scrub

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
    # Raised before anything was sent.
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
"""Full name of a class → its fault; an unlisted class has that of its nearest listed base. Without one,
libcloud stumbled over an answer (`KeyError`, `AttributeError`, …), so the request had been carried out.
"""


def kind_of(error: BaseException) -> Kind:
    """The kind of fault for an exception."""
    known = (BY_CLASS.get(f"{c.__module__}.{c.__qualname__}") for c in type(error).__mro__)
    return next((kind for kind in known if kind), TransientKind.AMBIGUOUS)


def raised_by_libcloud(error: BaseException) -> bool:
    """Whether the class itself is libcloud's: then it comes from an answer."""
    return f"{type(error).__module__}.{type(error).__qualname__}" in BY_CLASS and (
        type(error).__module__.startswith("libcloud.")
    )


BY_STATUS: Mapping[int, Kind] = {
    400: PermanentKind.INVALID,
    401: PermanentKind.AUTH,
    403: PermanentKind.AUTH,
    404: PermanentKind.NOT_FOUND,
    408: TransientKind.AMBIGUOUS,
    409: PermanentKind.CONFLICT,
    410: PermanentKind.NOT_FOUND,
    422: PermanentKind.INVALID,
    423: TransientKind.BUSY,
    425: TransientKind.BUSY,
    429: TransientKind.THROTTLED,
    501: PermanentKind.INVALID,
}
"""Others are `AMBIGUOUS` from 500 on and `INVALID` below: a refusal must not be repeated."""

_LEADING = (301, 302, 303, 307, 308)

_UNSENT = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError")
"""urllib3's reasons for a `ConnectionError` before any request."""


_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
"""Nothing is sent over such a connection, and retrying does not help. Other TLS faults may come late."""
_PLAIN = "WRONG_VERSION_NUMBER"
"""The answer is not TLS: nothing was sent either."""


@struct(frozen=True, slots=True, kw_only=True)
class Answer:
    """The last answer of a cloud: its status, headers by lower case name, and text."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


@struct(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """A cloud's error, and its kind if its code is known."""

    kind: Kind | None
    text: str
    hint: str | None = None


def fault(
    kind: Kind, summary: str, *, about: str | None = None, hint: str | None = None, after: float | None = None
) -> ProviderError:
    """The port's error of a kind."""
    if isinstance(kind, TransientKind):
        return TransientError(kind, summary, after=after, about=about, hint=hint)
    return PermanentError(kind, summary, about=about, hint=hint)


def classify(
    error: Exception,
    answer: Answer | None,
    *,
    what: str,
    scrub: Scrub,
    read: Callable[[Answer], ErrorInfo | None] = lambda _: None,
    about: str | None = None,
) -> ProviderError:
    """The port's error for the result of a request. `what` names it, `read` parses the driver's
    own errors.
    """
    if isinstance(error, ProviderError):
        return error
    if answer is not None and answer.status >= 300:
        # Before the text is cut: half a secret would not be recognized.
        answer = replace(answer, text=scrub.hide(answer.text))
        info = _elsewhere(answer) or read(answer) or _unknown(answer)
        kind = info.kind or by_status(answer.status)
        summary = scrub(f"{what}: {info.text}")
        return fault(kind, summary, about=about, hint=info.hint, after=_after(answer, kind))
    if answer is None:
        kind = by_class(error)
        return fault(kind, scrub(f"{what}: {_plain(error)}"), about=about, hint=_way(kind, _text(error)))
    if raised_by_libcloud(error) and kind_of(error) is not TransientKind.AMBIGUOUS:
        # GCE answers a query for an operation with 200, even if the operation failed.
        return fault(kind_of(error), scrub(f"{what}: {_plain(error)}"), about=about)
    return fault(TransientKind.AMBIGUOUS, scrub(f"{what}: its answer cannot be read"), about=about)


def _unknown(answer: Answer) -> ErrorInfo:
    """The text for an answer that no driver can read. Its own text is not shown: it may be anything, such as
    what a gateway was sent.
    """
    try:
        phrase = f" ({HTTPStatus(answer.status).phrase})"
    except ValueError:
        phrase = ""
    return ErrorInfo(kind=None, text=f"status {answer.status}{phrase}, with none of the cloud's errors")


def _elsewhere(answer: Answer) -> ErrorInfo | None:
    """The text for a redirect to another server. Nothing was sent there: see `connection`."""
    if answer.status not in _LEADING or "location" not in answer.headers:
        return None
    try:
        to = urlsplit(answer.headers["location"])
        where = f", {to.scheme}://{to.hostname}" + (f":{to.port}" if to.port else "") if to.scheme else ""
    except ValueError:
        where = ""
    hint = "nothing was sent there: write it as the `endpoint`, if you trust it"
    return ErrorInfo(kind=PermanentKind.INVALID, text=f"it leads to another server{where}", hint=hint)


def by_status(status: int) -> Kind:
    """The kind for an error's status if its code is unknown."""
    return BY_STATUS.get(status, TransientKind.AMBIGUOUS if status >= 500 else PermanentKind.INVALID)


def by_class(error: BaseException) -> Kind:
    """The kind for an exception without an answer."""
    if _reason(error) in _UNSENT:
        return TransientKind.NOT_SENT
    text = _text(error)
    if _UNTRUSTED in text:
        return PermanentKind.AUTH
    return PermanentKind.INVALID if _PLAIN in text else kind_of(error)


def _way(kind: Kind, text: str) -> str | None:
    """A hint for a connection that cannot be made."""
    if _UNTRUSTED in text:
        return "name the file of its authority's certificates in REQUESTS_CA_BUNDLE, or mend the `endpoint`"
    if _PLAIN in text:
        return "the server does not use TLS: write `http://…` as the `endpoint`, if you trust the network"
    if kind is TransientKind.NOT_SENT:
        return "no server answers there: check the `endpoint`, the network, and the environment's proxy"
    return None


def _reason(error: BaseException) -> str:
    """The class of urllib3's reason for a `ConnectionError`."""
    inner = error.args[0] if error.args else None
    return type(getattr(inner, "reason", inner)).__name__


def _plain(error: BaseException) -> str:
    """The error's text without object addresses and the request's URL."""
    if type(error).__module__.startswith(("libcloud.common", "libcloud.compute")):
        return type(error).__name__  # its text is that of an answer, which may be anything
    inner = error.args[0] if error.args else None
    reason = getattr(inner, "reason", None)
    shown = reason if isinstance(reason, BaseException) else error
    text = re.sub(r"<[^<>]* at 0x[0-9a-f]+>:? ?", "", _text(shown)) or type(shown).__name__
    return text if type(shown).__name__ in text else f"{type(shown).__name__}: {text}"


def _text(error: BaseException) -> str:
    """The text of an exception; some of libcloud's fail to give one."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # whatever they stumble over
        return ""


def _after(answer: Answer, kind: Kind) -> float | None:
    """Retry-After in seconds, from a number or a date; None for anything else."""
    given = answer.headers.get("retry-after")
    if given is None or not isinstance(kind, TransientKind):
        return None
    try:
        seconds = float(given)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(given) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return min(max(seconds, 0.0), 86400.0) if seconds == seconds else None  # noqa: PLR0124  # not NaN


_WORDS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"rate.?limit|too many requests", re.IGNORECASE), TransientKind.THROTTLED),
    (
        re.compile(r"pending event|is (already )?(being|locked)|in progress|try again", re.IGNORECASE),
        TransientKind.BUSY,
    ),
    (
        re.compile(
            r"(exceed|reach)\w*\b.*\b(droplet|server|instance|linode|vm)s? (count )?(limit|quota)|"
            r"(limit|maximum|quota)\b.*\b(number|count) of (droplets|servers|instances|linodes|vms)\b|"
            r"\bmaximum number of (active )?(droplets|servers|instances|linodes|vms)\b",
            re.IGNORECASE,
        ),
        PermanentKind.INSTANCES,
    ),
    (
        re.compile(r"(limit|quota|maximum)\b.*(exceed|reach)|(exceed|reach).*(limit|quota)", re.IGNORECASE),
        PermanentKind.QUOTA,
    ),
    (
        re.compile(
            r"(no|not enough|insufficient|out of) (capacity|stock|resources)|sold out|"
            r"(size|plan|instance type|server type)\b.*(not|un)\W*available",
            re.IGNORECASE,
        ),
        PermanentKind.NO_CAPACITY,
    ),
)
"""Words that are more precise than a refusal's status: some clouds use 422 for no capacity and for quotas."""
_REFUSALS = (400, 403, 409, 412, 422)
_TEXTS = ("message", "error", "errors", "detail", "reason", "errortext", "description", "error_message")
_HINTS = {PermanentKind.AUTH: "check the variables that `credentials` names, and what they may do"}


def error_info(answer: Answer) -> ErrorInfo | None:
    """An answer's error; None if it is not JSON, like a page of a gateway."""
    try:
        text = _text_in(json.loads(answer.text))
    except ValueError:
        return None
    if not text:
        return None
    kind = by_status(answer.status)
    if answer.status in _REFUSALS:
        kind = next((k for pattern, k in _WORDS if pattern.search(text)), kind)
    hint = _HINTS.get(kind) if isinstance(kind, PermanentKind) else None
    return ErrorInfo(kind=kind, text=text, hint=hint)


def _text_in(found: object, depth: int = 0, *, named: bool = False) -> str:
    """The text of an error: the first one under a typical key. `named`: this is under one."""
    if depth > 4:
        return ""
    if isinstance(found, str):
        return found if named else ""
    if isinstance(found, list):
        return "; ".join(filter(None, (_text_in(item, depth + 1, named=named) for item in found[:5])))
    if isinstance(found, dict):
        for key in _TEXTS:
            if text := _text_in(found.get(key), depth + 1, named=True):
                return text
        inner = (_text_in(item, depth + 1) for item in found.values() if isinstance(item, dict))
        return next(filter(None, inner), "")
    return ""
