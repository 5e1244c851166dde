"""A LiteLLM proxy with TLS whose providers are the local one: every name is loopback in this process only.

    litellm.py MODELS.json --port N --cert FILE --key FILE --upstream N      # MODELS: {model: "openai" | "anthropic"}
    litellm.py … --plain                    # its provider speaks OpenAI's API without TLS
    litellm.py … --slow SECONDS             # requests whose `user` is `slow` are held so long before they go on
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "sdks"))
sys.path.pop(0)  # this folder: its litellm.py is not the package

from view import API_KEY, lead_home  # noqa: E402 (the path above comes first)

SLOW = """import asyncio
from litellm.integrations.custom_logger import CustomLogger


class Slow(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        if data.get("user") == "slow":
            await asyncio.sleep(SECONDS)
        return data


slow = Slow()
"""
BASES = {"openai": "https://api.openai.com:{}/v1", "anthropic": "https://api.anthropic.com:{}"}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--port", required=True)
    parser.add_argument("--cert", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--slow", type=float)
    args = parser.parse_args()
    lead_home()
    os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"}
    bases = dict.fromkeys(BASES, "http://127.0.0.1:{}/v1") if args.plain else BASES
    models = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"{provider}/{name}", "api_base": bases[provider].format(args.upstream), "api_key": "sk-planted",
                "max_retries": 0,
            },
        }
        for name, provider in json.loads(args.models.read_text()).items()
    ]  # fmt: skip
    config = {
        "model_list": models, "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"master_key": API_KEY},
    }  # fmt: skip
    if args.slow:
        # LiteLLM finds it beside its configuration.
        (args.models.parent / "held.py").write_text(SLOW.replace("SECONDS", str(args.slow)))
        config["litellm_settings"] = {"callbacks": "held.slow"}
    file = args.models.with_suffix(".yaml")
    file.write_text(json.dumps(config))  # JSON is YAML
    from litellm import run_server
    from litellm.proxy.proxy_cli import ProxyInitializationHelpers

    # uvloop has a resolver of its own, outside Python.
    ProxyInitializationHelpers.get_loop_type = staticmethod(lambda: "asyncio")

    run_server(
        ["--config", str(file), "--host", "127.0.0.1", "--port", args.port, "--ssl_certfile_path", args.cert]
        + ["--ssl_keyfile_path", args.key, "--telemetry", "False"]
    )


if __name__ == "__main__":
    main()
