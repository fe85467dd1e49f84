"""The operator's certificate: where commands find it, and channels to the controller with it or without TLS."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grpc

from kvcast.errors import UsageError
from kvdaemon.errors import CannotRunError, ConfigError
from kvdaemon.tls_settings import TlsSettings, take_tls

NAMES: Final = ("cert", "key", "ca")
"""Of the files; a variable is KVCAST_TLS_ and the name, an option --tls- and the name."""
_HELP: Final = {
    "cert": "the operator's certificate (PEM), for a controller with TLS",
    "key": "its key",
    "ca": "the authority that signed the controller's",
}


def add_tls(parser: argparse.ArgumentParser) -> None:
    """Options for the three files."""
    for name in NAMES:
        parser.add_argument(
            f"--tls-{name}",
            type=Path,
            metavar="FILE",
            help=f"{_HELP[name]} (default: $KVCAST_TLS_{name.upper()}, else `tls` in ~/.config/kvcast/config.yaml)",
        )


def tls_given(args: argparse.Namespace, path: Path) -> TlsSettings | None:
    """The files that the options, the environment or the user's file at `path` name, in this order; None: no TLS.

    Raises UsageError.
    """
    options = {name: getattr(args, f"tls_{name}", None) for name in NAMES}
    if any(options.values()):
        return _three(options, "--tls-cert, --tls-key and --tls-ca go together")
    variables = {name: Path(text) for name in NAMES if (text := os.environ.get(f"KVCAST_TLS_{name.upper()}"))}
    if variables:
        return _three(variables, "KVCAST_TLS_CERT, KVCAST_TLS_KEY and KVCAST_TLS_CA go together")
    return from_file(path)[1]


def from_file(path: Path) -> tuple[str, TlsSettings | None]:
    """What the user's own file says: the controller's address (empty: nothing), and the certificates. Raises
    UsageError."""
    from kvdaemon import checks, settings  # and YAML: only where no option or variable says it

    if not path.exists():
        return "", None

    def parse(values: object) -> tuple[str, TlsSettings | None]:
        section = settings.Section(values)
        found = section.take("controller", checks.text, ""), take_tls(section.section("tls"), path.parent)
        section.done()
        return found

    try:
        return settings.load(path, parse)
    except ConfigError as error:
        raise UsageError(str(error)) from error


class Channels:
    """Makes channels to the controller. `tls` None: plain ones."""

    def __init__(self, tls: TlsSettings | None) -> None:
        """Raises UsageError when the files are no good."""
        self._certificates = None
        if tls is None:
            return
        from kvdaemon.identity import Role  # and cryptography: only where there is TLS
        from kvdaemon.tls import Certificates

        try:
            self._certificates = Certificates(tls, Role.OPERATOR)
        except CannotRunError as error:
            raise UsageError(str(error)) from error

    def channel(self, address: str) -> grpc.Channel:
        """To HOST:PORT."""
        if self._certificates is None:
            return grpc.insecure_channel(address)
        credentials, options = self._certificates.for_channel()
        return grpc.secure_channel(address, credentials, options)

    def why_not(self, address: str) -> str:
        """What is wrong with TLS to HOST:PORT; empty: nothing, or there is none."""
        return "" if self._certificates is None else self._certificates.why_not(address)


def _three(files: Mapping[str, Path | None], words: str) -> TlsSettings:
    cert, key, ca = (files.get(name) for name in NAMES)
    if cert is None or key is None or ca is None:
        raise UsageError(f"{words} (kvcast pki makes all three)")
    return TlsSettings(cert, key, ca)
