"""The section `cold` of the agent's configuration: a service of opendal, its options, and where its credentials are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from hostagent.cold.cold_options import ColdConfig, SecretPlace, is_secret
from kvdaemon import checks
from kvdaemon.errors import ConfigError
from kvdaemon.settings import Section
from kvpolicy.tiers.form_costs import FormChoice

FORMS = tuple(choice.value for choice in FormChoice)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


def take_cold(section: Section) -> ColdConfig | None:
    """The checked section; None: there is no cold store. Raises ConfigError."""
    default = ColdConfig("")
    options: Mapping[str, str] | None = section.take("options", _options, None)
    secrets: Mapping[str, SecretPlace] | None = section.take("secrets", _secrets, None)
    config = ColdConfig(
        scheme=section.take("scheme", _scheme, default.scheme),
        options=options or {},
        secrets=secrets or {},
        timeout_s=section.take("timeout_s", checks.number(0.1, 600), default.timeout_s),
        lookup_wait_s=section.take("lookup_wait_s", checks.number(0, 10), default.lookup_wait_s),
        write_bytes_per_s=section.take("write_rate", checks.size, default.write_bytes_per_s),
        form=FormChoice(section.take("form", checks.one_of(FORMS), default.form.value)),
    )
    section.done()
    if not config.scheme:
        if config.options or config.secrets:
            raise ConfigError(
                "cold.scheme is missing: name the service that cold.options are for, as in fs, s3, redis, mooncake"
            )
        return None
    twice = sorted(set(config.options) & set(config.secrets))
    if twice:
        raise ConfigError(f"cold.secrets.{twice[0]} stands in cold.options as well: give it once")
    return config


def _scheme(value: object) -> str:
    scheme = checks.text(value)
    if not _NAME.fullmatch(scheme):
        raise ValueError("not the name of a service, like fs, s3, redis or mooncake")
    return scheme


def _named(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"not a mapping of {what}")
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of an option, like bucket or endpoint")
    return value


def _options(value: object) -> dict[str, str]:
    """Options as opendal takes them: text. A message never shows a value: it might be a credential after all."""
    options = {}
    for name, one in _named(value, "options of the service").items():
        if is_secret(name):
            raise ValueError(
                f"{name} is a credential, and those do not stand in this file: give cold.secrets.{name} "
                "a 'file' or an 'environment' to read it from"
            )
        if not isinstance(one, str | int | float):
            raise ValueError(f"{name}: not text, a number, true or false")
        options[name] = str(one).lower() if isinstance(one, bool) else str(one)
        if _has_password(options[name]):
            raise ValueError(f"{name} has a password in it: credentials go to cold.secrets")
    return options


def _has_password(text: str) -> bool:
    try:
        return "://" in text and urlsplit(text).password is not None
    except ValueError:
        return False


def _secrets(value: object) -> dict[str, SecretPlace]:
    """Where credentials are: {name: {file: PATH}} or {name: {environment: VARIABLE}}."""
    places = {}
    for name, one in _named(value, "credentials of the service").items():
        if not isinstance(one, Mapping) or len(one) != 1 or not set(one) <= {"file", "environment"}:
            raise ValueError(f"{name} needs one of 'file' and 'environment', and never the credential itself")
        ((kind, place),) = one.items()
        if not isinstance(place, str) or not place:
            raise ValueError(f"{name}.{kind} is not text")
        places[name] = SecretPlace(file=place) if kind == "file" else SecretPlace(variable=place)
    return places
