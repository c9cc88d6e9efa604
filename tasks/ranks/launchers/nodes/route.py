"""The way from this machine to the head: which address and which network interface it has there."""

import socket

import psutil

from tasks.process.failure import ConfigurationError


def look_up_route(host: str, port: int) -> tuple[str, str]:
    """Return this machine's address on the way to the head, and the interface that has it.

    Raises ConfigurationError if there is no way, or the interface has no name.
    """
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as plug:
            plug.connect(target)  # sends nothing: the kernel looks up the route
            address: str = plug.getsockname()[0]
    except OSError as error:
        raise ConfigurationError(f"{host}: {error.strerror}; allowed: a host that this machine reaches") from None
    for interface, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return address, interface
    raise ConfigurationError(f"{host}: reached from {address}, which no network interface of this machine has")


def find_free_port(address: str) -> int:
    """Return a port that nobody has now."""
    with socket.create_server((address, 0)) as plug:
        port: int = plug.getsockname()[1]
    return port
