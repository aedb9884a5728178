"""Whether an address is this machine's own: no client asks a proxy for it, whatever the environment names."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import BaseHandler, OpenerDirector, ProxyHandler, build_opener


def is_loopback(url: str) -> bool:
    """Whether the host of an address is a name or an address of this machine's loopback interface."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    # A client that connects to 0.0.0.0 or :: reaches this machine.
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def opener_for(url: str, *handlers: type[BaseHandler]) -> OpenerDirector:
    """What opens an address: directly on this machine, and elsewhere by the environment's proxies."""
    return build_opener(*([ProxyHandler({})] if is_loopback(url) else []), *handlers)
