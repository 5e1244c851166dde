"""Every call that one Python SDK can make, against the local provider; writes a view per call.

    python_sdk.py SDK --port N --front NAME [--h2] [--asyncio] --out FILE        # SDK: openai, anthropic, google, …
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
from pathlib import Path
from typing import Any

from view import Link, View, close, lead_home


async def one(sdk: Any, client: Any, wire: str, case: str, link: Link, out: Path) -> None:
    """One call; whatever it raises belongs to the view."""
    view = View(sdk.SDK, wire, case, link, getattr(sdk, "PREFIX", ""))
    try:
        await asyncio.wait_for(getattr(sdk, wire)(client, view), 20)
    except Exception as error:  # noqa: BLE001 (what an SDK raises is its own affair: the rig compares it with the truth)
        view.raised(error)
    view.write(out)


async def run(sdk: Any, wire: str, link: Link, out: Path) -> None:
    """All cases of a wire on one client; what asyncio can do at once, it does. A client that leaves has its own
    connection, and closes it."""
    cases = sdk.WIRES[wire]
    client = sdk.client(link, wire)
    if "stream" in cases:
        await one(sdk, client, wire, "warm", link, out)
    together = [case for case in cases if case not in ("cancel", "error", "cut")]
    if link.asynchronous:
        await asyncio.gather(*(one(sdk, client, wire, case, link, out) for case in together))
    else:
        for case in together:
            await one(sdk, client, wire, case, link, out)
    # hypercorn says nothing when a stream of HTTP/2 fails: its client would wait.
    for case in ("error", *(("cut",) if link.front != "direct" or not link.http2 else ())):
        if case in cases:
            await one(sdk, client, wire, case, link, out)
    await close(client)
    if "cancel" in cases:
        leaving = sdk.client(link, wire)
        await one(sdk, leaving, wire, "cancel", link, out)
        await close(leaving)


async def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdk")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--front", required=True)
    parser.add_argument("--h2", action="store_true")
    parser.add_argument("--asyncio", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    lead_home()
    sdk = importlib.import_module(f"{args.sdk}_calls")
    link = Link(args.port, args.front, args.h2, args.asyncio)
    for wire in sdk.WIRES:
        if wire == "realtime" and args.h2:
            continue  # a WebSocket begins as HTTP/1.1 in every SDK
        await run(sdk, wire, link, args.out)


if __name__ == "__main__":
    asyncio.run(main())
