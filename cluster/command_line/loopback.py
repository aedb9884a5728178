"""Whether an address is this machine's own: no client asks a proxy for it, whatever the environment names."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address
from socket import inet_aton
from urllib.parse import urlsplit
from urllib.request import BaseHandler, OpenerDirector, ProxyHandler, build_opener

_NAMES = ("localhost", "localhost4", "localhost6", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
"""Names of the loopback address, as systems list them in /etc/hosts."""


def is_loopback(url: str) -> bool:
    """Whether the host of an address is a name or an address of this machine's loopback interface."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        # As clients take it: also 127.1, 0x7f.1 and 2130706433.
        address = ip_address(host) if ":" in host else IPv4Address(inet_aton(host))
    except (ValueError, OSError):
        return host in _NAMES or host.endswith(".localhost")
    # A client that connects to 0.0.0.0 or :: reaches this machine.
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def opener_for(url: str, *handlers: type[BaseHandler]) -> OpenerDirector:
    """Opens an address directly on this machine, and elsewhere by the environment's proxies."""
    return build_opener(*([ProxyHandler({})] if is_loopback(url) else []), *handlers)
