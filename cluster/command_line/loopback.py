"""Whether an address is this machine's own: no client asks a proxy for it, whatever the environment names."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import inet_aton
from urllib.parse import urlsplit
from urllib.request import BaseHandler, OpenerDirector, ProxyHandler, build_opener

_NAMES = ("localhost", "localhost4", "localhost6", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
"""As systems list them in /etc/hosts."""


def is_loopback(url: str) -> bool:
    """Whether the host of an address is a name or an address of this machine's loopback interface."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host in _NAMES or host.endswith(".localhost"):
        return True
    try:
        address = _address_of(host)
    except (ValueError, OSError):
        return False
    # A client that connects to 0.0.0.0 or :: reaches this machine.
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _address_of(host: str) -> IPv4Address | IPv6Address:
    """Also of a number as clients take it (127.1, 0x7f.1, 2130706433). Raises ValueError or OSError for a name."""
    return ip_address(host) if ":" in host else IPv4Address(inet_aton(host))


def opener_for(url: str, *handlers: type[BaseHandler]) -> OpenerDirector:
    """What opens an address: directly on this machine, and elsewhere by the environment's proxies."""
    return build_opener(*([ProxyHandler({})] if is_loopback(url) else []), *handlers)
