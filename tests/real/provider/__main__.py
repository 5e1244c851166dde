"""Serves the provider by hypercorn: TLS with HTTP/2 and HTTP/1.1, and plain HTTP/1.1 for fronts.

    python -m provider --cert FILE --key FILE --truth FILE       # prints {"tls": port, "plain": port}
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import signal
import socket
from pathlib import Path

from hypercorn.asyncio import serve
from hypercorn.config import Config

from .app import Provider


def listener() -> socket.socket:
    """A listening loopback socket on a free port: bound here, so that there is no race for it."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    bound.listen(128)
    return bound


async def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cert", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--truth", required=True, type=Path)
    args = parser.parse_args()
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)  # 1 = PR_SET_PDEATHSIG
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    tls, plain = listener(), listener()
    config = Config()
    config.certfile, config.keyfile = args.cert, args.key
    config.bind, config.insecure_bind = [f"fd://{tls.fileno()}"], [f"fd://{plain.fileno()}"]
    config.graceful_timeout, config.keep_alive_timeout, config.loglevel = 1.0, 60.0, "WARNING"
    config.include_server_header = False
    print(json.dumps({"tls": tls.getsockname()[1], "plain": plain.getsockname()[1]}), flush=True)
    await serve(Provider(args.truth), config, shutdown_trigger=stop.wait)


if __name__ == "__main__":
    asyncio.run(main())
