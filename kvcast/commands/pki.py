"""`kvcast pki`: an authority and certificates for a cluster, as daemons and commands want them."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from kvcast.arguments import checked, output_folder, whole
from kvcast.errors import UsageError
from kvcast.operator import console
from kvcast.setup.certificates import AUTHORITY, CertificateError, authority, file_name
from kvdaemon.identity import TRUST_DOMAIN, Identity, Role, parse_identity, trust_domain

_FOR = {
    Role.AGENT: "agent.yaml of the node",
    Role.CONTROLLER: "controller.yaml",
    Role.OPERATOR: "commands: --tls-cert, --tls-key",
    Role.ENGINE: "engines",
    Role.SWITCH: "p4switch --tls-cert and --tls-key",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast pki`."""
    parser.add_argument("--dir", type=output_folder, default=Path("tls"), metavar="DIR", help="default: tls")
    parser.add_argument("--nodes", default="", metavar="NODE,...", help="the agents; more can be added by another call")
    parser.add_argument(
        "--trust-domain",
        type=checked(trust_domain),
        default=TRUST_DOMAIN,
        metavar="NAME",
        help="the first part of all identities (default %(default)s)",
    )
    parser.add_argument("--days", type=whole(1), default=365, help="that certificates are good for (default 365)")
    parser.add_argument("--renew", action="store_true", help="replace certificates that are there")


def run(args: argparse.Namespace) -> int:
    """Make what is missing, and show it."""
    wanted = [Identity(args.trust_domain, role) for role in Role if role is not Role.AGENT]
    for node in filter(None, (name.strip() for name in args.nodes.split(","))):
        try:
            wanted.append(parse_identity(f"spiffe://{args.trust_domain}/agent/{node}"))
        except ValueError as error:
            raise UsageError(f"--nodes: {node!r} is not a node's name: letters, digits, '.', '_' and '-'") from error
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("FILES", "IDENTITY", "FOR"):
        table.add_column(heading, overflow="fold")
    try:
        args.dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        signer, new = authority(args.dir, args.trust_domain)
        table.add_row(AUTHORITY, "the authority" + ("" if new else " (was there)"), "everybody's ca; its key: nobody's")
        for identity in wanted:
            name = file_name(identity)
            there = (args.dir / f"{name}.pem").exists() and not args.renew
            if not there:
                signer.issue(args.dir, identity, args.days)
            table.add_row(name, f"{identity}{' (was there)' if there else ''}", _FOR[identity.role])
    except CertificateError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"cannot write to {args.dir}: {error.strerror}") from error
    out = console()
    out.print(table)
    out.print(f"Each is two files in {args.dir}: NAME.pem, the certificate, and NAME.key, its key (mode 0600).")
    return 0
