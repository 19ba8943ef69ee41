"""The setting ``rates``: how many requests a second callers may make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MIN_RATE = 0.001
"""Min requests a second; a lower rate is a typing error."""

_RATE = Meta(
    description="Max requests a second of an application with its users, in a worker; 0: no limit.",
    ge=0,
    le=1_000_000,
)
_BURST = Meta(
    description="Max requests of it at once after a pause; 0: those of one second, at least one.",
    ge=0,
    le=1_000_000,
)
_USER_RATE = Meta(description="Max requests a second of each user, in a worker; 0: no limit.", ge=0, le=1_000_000)
_USER_BURST = Meta(
    description="Max requests of a user at once after a pause; 0: those of one second, at least one.",
    ge=0,
    le=1_000_000,
)


class OwnRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of one application. A field that is not given has the value for all applications."""

    application: Annotated[float, _RATE] | None = None
    application_burst: Annotated[int, _BURST] | None = None
    user: Annotated[float, _USER_RATE] | None = None
    user_burst: Annotated[int, _USER_BURST] | None = None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Max requests a second of callers."""

    application: Annotated[float, _RATE] = 0.0
    application_burst: Annotated[int, _BURST] = 0
    user: Annotated[float, _USER_RATE] = 0.0
    user_burst: Annotated[int, _USER_BURST] = 0
    applications: Annotated[
        dict[str, OwnRates],
        Meta(
            description="Only in a file: a table with these fields for each application that differs.",
            extra={"default": "none"},
        ),
    ] = {}

    def of(self, application: str) -> Rates:
        own = self.applications.get(application)
        if own is None:
            return self
        return msgspec.structs.replace(self, **{name: value for name, value in _given(own) if value is not None})

    def rate(self, kind: Literal["application", "user"]) -> tuple[float, int]:
        """Returns (rate, burst); a rate of 0 is no limit."""
        rate, burst = (
            (self.application, self.application_burst) if kind == "application" else (self.user, self.user_burst)
        )
        return rate, burst or max(1, int(rate))

    @property
    def any(self) -> bool:
        return any(rates.application or rates.user for rates in (self, *map(self.of, self.applications)))

    def mistakes(self) -> Iterator[str]:
        """Yields conflicts between fields that are valid by themselves."""
        for where, rates in (("", self), *((f"applications.{name}.", self.of(name)) for name in self.applications)):
            for kind, rate, burst in (
                ("application", rates.application, rates.application_burst),
                ("user", rates.user, rates.user_burst),
            ):
                if 0 < rate < MIN_RATE:
                    yield f"{where}{kind} {rate}, which must be 0 or at least {MIN_RATE}"
                if burst and not rate:
                    yield f"{where}{kind}_burst, which needs {kind}"


def _given(own: OwnRates) -> Iterator[tuple[str, float | None]]:
    return ((name, getattr(own, name)) for name in own.__struct_fields__)
