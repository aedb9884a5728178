"""Regular expressions of the formats of strings. They allow texts of the format only, if not all of them."""

from __future__ import annotations

from collections.abc import Mapping

_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_DATE = (
    r"[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_NAME}(?:\.{_NAME}){{0,3}}"
_EMAIL = rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_NAME}(?:\.{_NAME})*\.[A-Za-z]{{2,}}"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = rf"(?:(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,6}}:{_GROUP}|::(?:{_GROUP}(?::{_GROUP}){{0,5}})?)"
_SIGN = r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
_ENDING = rf"(?:\?(?:{_SIGN}|[:/?])*)?(?:#(?:{_SIGN}|[:/?])*)?"
_AUTHORITY = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[1-9][0-9]{0,3})?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*://{_AUTHORITY}(?:/(?:{_SIGN}|:)*)*{_ENDING}"
_DURATION = "P(?:[0-9]+W|[0-9]+D(?:T[0-9]+H)?|[0-9]+[YM]|T[0-9]+[HMS])"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

STRING_FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "uuid": _UUID,
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": rf"(?:{_URI}|(?:/?{_SIGN}+)*/?{_ENDING})",
    "iri-reference": rf"(?:{_URI}|(?:/?{_SIGN}+)*/?{_ENDING})",
    "json-pointer": r"(?:/(?:[^/~\x00-\x1f\x7f-\x9f]|~[01])*)*",
}
"""The formats that are kept. By the JSON Schema specification all others are annotations."""
