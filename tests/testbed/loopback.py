"""Free ports on the loopback interface, reserved until their user has bound them."""

import socket

LOOPBACK = "127.0.0.1"


def reserve_port() -> int:
    """A port left in TIME_WAIT: handed to nobody for a minute, but bound by number with SO_REUSEADDR."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, 0))
        listener.listen(1)
        port: int = listener.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)) as client:
            accepted, _ = listener.accept()
            # The side that closes first is the one whose port rests in TIME_WAIT.
            accepted.close()
            client.recv(1)
    return port
