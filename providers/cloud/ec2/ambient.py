"""Credentials of AWS that no backend names: a profile, a role, what the machine itself has.

botocore looks for them where AWS's own tools do: variables, `AWS_PROFILE` and ~/.aws with roles and SSO, a
token of the CI (web identity), the metadata of container and machine. It renews what ends, in memory alone.
It is an extra (`aws`): two variables that are named need no library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from declarative.provider import (
    Config,
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
)
from providers.cloud.settings import write

_AWAY = ("ConnectionError", "HTTPClientError", "ConnectionClosedError", "MetadataRetrievalError")
"""Classes of botocore's, for STS or the metadata that did not answer."""


class Ambient:
    """What the chain finds, renewed when it ends. Safe to use from many threads."""

    def __init__(
        self, config: Config, profile: str | None, region: str, learn: Callable[[Iterable[str]], None]
    ) -> None:
        """`region` is asked for a role where AWS's own settings name none. `learn` is told each secret before
        it is used.
        """
        self._backend, self._profile, self._region, self._learn = config.backend, profile, region, learn
        self._hint = write(config, "credentials")
        self._turn = threading.Lock()
        self._found: Any = None
        self._last: dict[str, str] = {}

    def __call__(self) -> dict[str, str]:
        """Key, secret and token as they are now; `ProviderError` if there are none."""
        with self._turn:
            try:
                if self._found is None:
                    self._found = self._look()
                frozen = self._found.get_frozen_credentials()
            except ProviderError:
                raise
            except Exception as error:  # noqa: BLE001  # botocore raises whatever it stumbles over
                raise self._fault(error) from None
            given = {"key": frozen.access_key, "secret": frozen.secret_key, "token": frozen.token}
            values = {name: str(value) for name, value in given.items() if value}
            if values != self._last:
                self._learn(values.values())
                self._last = values
            return values

    def _look(self) -> Any:
        try:
            from botocore.session import Session  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            summary = (
                f"backend {self._backend} names no `key` under `credentials`, and botocore is not installed"
            )
            hint = f"{self._hint}; or, for profiles and roles, in its environment: `pip install botocore`"
            raise PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint) from None
        session = Session(profile=self._profile)
        if session.get_config_variable("region") is None:
            session.set_config_variable("region", self._region)
        found = session.get_credentials()
        if found is None:
            summary = (
                f"backend {self._backend} names no `credentials`, and AWS's own tools would find none either"
            )
            hint = f"{self._hint}; or set AWS_PROFILE, or log in: `aws sso login`"
            raise PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint)
        return found

    def _fault(self, error: Exception) -> ProviderError:
        """Only the class and AWS's own code are told: messages may quote what was sent."""
        names = {cls.__name__ for cls in type(error).__mro__}
        response = getattr(error, "response", None)
        code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
        what = f"{type(error).__name__}{f' ({code})' if code else ''}"
        summary = f"backend {self._backend}: AWS's credentials could not be had: {what}"
        if not names.isdisjoint(_AWAY):
            return TransientError(TransientKind.NOT_SENT, summary, about="credentials")
        if "ProfileNotFound" in names:
            hint = "name a profile of ~/.aws/config: `AWS_PROFILE`, or `options: {profile: …}`"
        else:
            hint = "see that `aws sts get-caller-identity` works here with the same profile or role"
        return PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint)
