"""The address that the server listens on, and how many connections it may have there."""

import ipaddress
import os
import socket
from contextlib import suppress

from shared.serving.settings import SettingError


def listen(host: str, port: int, has_key: bool) -> socket.socket:
    """Take the address. Raises SettingError when it can't be had, or would be open to all without a key."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise SettingError(f"--host {host}: {error}") from None
    family, kind, protocol, _, address = found[0]
    if not _is_loopback_address(address[0]) and not has_key:
        raise SettingError(
            f"--host {host} can be reached from other computers, and anyone there could use the model. Set a key that "
            "callers must send, as in  API_KEY=something-long python -m shared.serving --host " + host
        )
    sock = socket.socket(family, kind, protocol)
    if os.name == "posix":  # there it lets a server start again at once; on Windows it lets two share a port
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(1024)
    except PermissionError:
        message = f"Port {port} may not be used by an ordinary user; take one above 1023, such as --port 8000."
        raise SettingError(message) from None
    except OSError as error:
        if error.errno not in (48, 98, 10048):  # "in use" on macOS, Linux, Windows
            raise SettingError(f"Can't listen on {host} port {port}: {error.strerror}.") from None
        other = port + 1 if port < 65535 else 8000
        raise SettingError(
            f"Port {port} is already taken, perhaps by a server you started earlier. Stop that one, or take another: "
            f"--port {other}, or with make: make serve PORT={other}"
        ) from None
    return sock


def is_loopback(sock: socket.socket) -> bool:
    """Whether only this computer can reach it."""
    return _is_loopback_address(sock.getsockname()[0])


def raise_file_limit() -> None:
    """Allow as many open connections as the system lets us: each takes a file, and often only 256 are allowed."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = 10_240 if hard == resource.RLIM_INFINITY else hard  # macOS says "no limit", and takes no more than this
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _is_loopback_address(address: object) -> bool:
    return ipaddress.ip_address(str(address).split("%")[0]).is_loopback
