"""String formats as regular expressions: tight enough for a format checker, bounded where digits could run on.

llguidance knows these names too, but with a 29 February in every year, a year 0000, a second 60 and endless fractions,
which a checker of the finished text refuses.
"""

from __future__ import annotations

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])"
# Labels of at most 61 characters, at most four of them: below the 253 that a name may have.
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,59}[A-Za-z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9a-fA-F]{1,4}"
_SHORTENED = "|".join(
    [
        rf"(?:{_GROUP}(?::{_GROUP}){{0,{before - 1}}})?::(?:{_GROUP}(?::{_GROUP}){{0,{6 - before}}})?"
        for before in range(1, 7)
    ]
)
_PATH = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_COUNT = "[0-9]{1,6}"
_DAYS = rf"(?:{_COUNT}Y(?:{_COUNT}M)?(?:{_COUNT}D)?|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}D)"
_CLOCK = rf"T(?:{_COUNT}H(?:{_COUNT}M)?(?:{_COUNT}S)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_COUNT}W|{_DAYS}(?:{_CLOCK})?|{_CLOCK})",
    "email": rf"{_ATOM}(?:\.{_ATOM}){{0,3}}@{_HOSTNAME}",
    "hostname": _HOSTNAME,
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": f"(?:{_GROUP}(?::{_GROUP}){{7}}|{_SHORTENED})",
    "uuid": "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "uri": (
        rf"[A-Za-z][A-Za-z0-9+.-]{{0,15}}:(?://(?:{_PATH}{{1,64}}@)?(?:{_HOSTNAME}|{_BYTE}(?:\.{_BYTE}){{3}})"
        rf"(?::[0-9]{{1,5}})?(?:/{_PATH}*)*|(?:/?{_PATH}+(?:/{_PATH}*)*))"
        rf"(?:\?(?:{_PATH}|[/?])*)?(?:#(?:{_PATH}|[/?])*)?"
    ),
}
