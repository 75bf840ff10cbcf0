"""Whether an address is this machine's own, however public it looks.

What is sent to it never leaves the machine: it passes by every firewall around it, to services that were
meant for nobody outside.
"""

import errno
import socket
from ipaddress import ip_address

# Of documentation: no machine has them.
_NOBODYS = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def is_own_address(text: str) -> bool:
    """Asks the kernel; nothing is sent."""
    family = socket.AF_INET6 if ip_address(text).version == 6 else socket.AF_INET
    if not _can_be_bound(family, text):
        return False
    # Where anything may be bound, as routers and balancers are set up, this says nothing.
    return not _can_be_bound(family, _NOBODYS[family]) or _is_answered_from(family, text)


def _can_be_bound(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((address, 0))
    except OSError as error:
        return error.errno not in _NOT_OURS
    return True


def _is_answered_from(family: socket.AddressFamily, address: str) -> bool:
    """Whether the way to it begins at it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.connect((address, 9))
            return ip_address(one.getsockname()[0]) == ip_address(address)
    except OSError:
        return False
