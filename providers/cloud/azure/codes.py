"""The codes of Azure's errors as the port's kinds of fault. The status misleads: what is sold out, what is
busy and what is there already are all a 409.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from declarative.provider import PermanentKind, TransientKind
from providers.cloud.exception_kinds import Kind
from providers.cloud.faults import Answer, Said

_CODES: Mapping[Kind, str] = {
    TransientKind.THROTTLED: """
        TooManyRequests OperationNotAllowedDueToThrottling SubscriptionRequestsThrottled
        ResourceRequestsThrottled ServerBusy
    """,
    TransientKind.AMBIGUOUS: """
        InternalServerError InternalExecutionError InternalOperationError ServiceUnavailable
        GatewayTimeout ServerTimeout OperationPreempted NetworkingInternalOperationError
        OverconstrainedRetryableError
    """,
    TransientKind.BUSY: """
        AnotherOperationInProgress RetryableError RetryableErrorDueToAnotherOperation
        ConflictingUserInput OperationNotAllowedWhileUpdating
        AttachDiskWhileBeingDetached DiskBeingDetached NicReservedForAnotherVm
        NicInUse InUseDiskCannotBeDeleted PublicIPAddressCannotBeDeleted
        ReferencedResourceNotProvisioned ResourceNotReady
        ResourceGroupBeingDeleted DiskBlobBeingDetached
    """,
    PermanentKind.NO_CAPACITY: """
        SkuNotAvailable AllocationFailed ZonalAllocationFailed OverconstrainedAllocationRequest
        OverconstrainedZonalAllocationRequest SpotAllocationFailed
        AllocationTimeout DiskAllocationFailed CapacityReservationFull
        InsufficientCapacity
    """,
    PermanentKind.QUOTA: """
        QuotaExceeded ResourceQuotaExceeded SubnetIsFull PublicIPCountLimitReached
        MaxStorageAccountsCountPerSubscriptionExceeded
        ReadOnlyResourceQuotaExceeded PublicIpAddressQuotaReached
    """,
    PermanentKind.AUTH: """
        AuthorizationFailed AuthenticationFailed InvalidAuthenticationToken
        InvalidAuthenticationTokenTenant ExpiredAuthenticationToken LinkedAuthorizationFailed
        SubscriptionNotFound SubscriptionNotRegistered MissingSubscriptionRegistration
        ReadOnlyDisabledSubscription DisallowedOperation RequestDisallowedByPolicy
        invalid_client unauthorized_client invalid_request invalid_grant
        MarketplacePurchaseEligibilityFailed ScopeLocked
    """,
    PermanentKind.NOT_FOUND: "ResourceNotFound NotFound ParentResourceNotFound",
    PermanentKind.CONFLICT: "PreconditionFailed",
    PermanentKind.INVALID: """
        ResourceGroupNotFound InvalidParameter InvalidRequestFormat InvalidResourceReference
        PropertyChangeNotAllowed PlatformImageNotFound ImageNotFound GalleryImageNotFound
        LocationNotAvailableForResourceType NoRegisteredProviderFound InvalidTemplate
        BadRequest ResourceTypeNotSupported LinkedInvalidPropertyId InvalidResourceLocation
        OSProvisioningTimedOut OSProvisioningClientError VMMarketplaceInvalidInput
        AttachDiskFailed InvalidApiVersionParameter
    """,
}
CODES: Mapping[str, Kind] = {code: kind for kind, codes in _CODES.items() for code in codes.split()}

_HINTS: Mapping[str, str] = {
    "AuthorizationFailed": "give the application the role Contributor on the resource group",
    "invalid_client": "check the values of the variables that `credentials.key` and `.secret` name",
    "unauthorized_client": "check the values that `credentials.key` and `credentials.tenant_id` name",
    "invalid_request": "check the value of the variable that `credentials.tenant_id` names",
    "SubscriptionNotFound": "check the value of the variable that `credentials.subscription_id` names",
    "MissingSubscriptionRegistration": "register Microsoft.Compute and .Network for the subscription",
    "ResourceGroupNotFound": "make it: `az group create`, or correct `options.resource_group`",
    "PlatformImageNotFound": "the backend's `image` is `Publisher:Offer:Sku:Version`, or the id of one",
    "QuotaExceeded": "ask Azure for a higher quota, or lower the fleet's `nodes`",
}


def said(answer: Answer) -> Said | None:
    """What an error of Azure says; None if it is none of Azure's, as the page of a gateway."""
    try:
        found = json.loads(answer.text)
    except ValueError:
        return None
    error = found.get("error", found) if isinstance(found, dict) else None
    if isinstance(error, str):  # that of a login
        text = f"{error}: {found.get('error_description') or ''}"
        return Said(kind=CODES.get(error), text=text, hint=_HINTS.get(error))
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        return None
    code, message = told(error)
    if answer.status == 412:  # it was asked that there be none yet
        return Said(kind=PermanentKind.CONFLICT, text=f"{code}: {message}")
    return Said(kind=kind_of(code, message), text=f"{code}: {message}", hint=hint(code, message))


def told(error: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message of an error: those of its first detail where itself says no more than `Conflict`."""
    details = error.get("details")
    if error.get("code") in ("Conflict", "DeploymentFailed", "MultipleErrorsOccurred") and details:
        inner = details[0] if isinstance(details, list) and isinstance(details[0], dict) else {}
        if inner.get("code"):
            return str(inner["code"]), str(inner.get("message") or "")
    return str(error.get("code") or ""), str(error.get("message") or "")


def kind_of(code: str, message: str) -> Kind | None:
    """What a code means; None if nobody knows. `OperationNotAllowed` says only in words what is not."""
    if code == "OperationNotAllowed":
        return PermanentKind.QUOTA if "quota" in message.lower() else PermanentKind.CONFLICT
    return CODES.get(code)


def hint(code: str, message: str) -> str | None:
    """What to do about a code."""
    quota = kind_of(code, message) is PermanentKind.QUOTA
    return _HINTS.get("QuotaExceeded" if quota else code)
