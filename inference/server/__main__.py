"""`python -m inference.server`: one engine behind HTTP, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from inference.catalogue import CatalogueError, display_name, locate
from inference.config import EngineConfig
from inference.core.client import CoreClient
from inference.core.messages import Start, TokenizerData
from inference.server.app import Front, FrontConfig
from inference.server.life import Ending, serve, start
from inference.tokenizer import Tokenizer, TokenizerError, load_tokenizer

log = logging.getLogger("inference.server")
DRAIN_SECONDS = 30.0


def parser() -> argparse.ArgumentParser:
    defaults = EngineConfig(Path("."))
    flags = argparse.ArgumentParser(prog="python -m inference.server", description=__doc__)
    flags.add_argument("--model", required=True, help="a name from the catalogue, a .gguf file, or a folder")
    flags.add_argument("--embedder", help="a name from the catalogue or a folder; none: no /v1/embeddings")
    flags.add_argument("--home", type=Path, default=Path("~/.quarry"), help="where models are kept (in models/)")
    flags.add_argument("--served-name", default="", help="the model's name for clients; default: the name given")
    flags.add_argument("--alias", action="append", default=[], help="a further name the model answers to")
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=int, default=8000)
    flags.add_argument("--device", default=defaults.device)
    flags.add_argument("--dtype", default=defaults.dtype)
    flags.add_argument(
        "--quantization", default=defaults.quantization, help="how weights are kept: auto, none, fp16, int8"
    )
    flags.add_argument("--max-model-len", type=int)
    flags.add_argument("--max-num-seqs", type=int, default=defaults.max_num_seqs)
    flags.add_argument("--max-num-batched-tokens", type=int, default=defaults.max_num_batched_tokens)
    flags.add_argument("--max-waiting", type=int, default=defaults.max_waiting)
    flags.add_argument("--page-size", type=int, default=defaults.page_size)
    flags.add_argument("--kv-cache-mib", type=int, default=defaults.kv_cache_bytes >> 20)
    flags.add_argument("--threads", type=int, help="CPU threads; default: torch's choice")
    flags.add_argument("--no-prefix-cache", action="store_true")
    flags.add_argument(
        "--speculation", default=",".join(defaults.speculation), help="what proposes tokens: forced, lookup; none: ''"
    )
    flags.add_argument("--max-draft-tokens", type=int, default=defaults.max_draft_tokens, help="a request and step")
    flags.add_argument("--draft-model", help="a smaller model of the same vocabulary that proposes tokens")
    flags.add_argument(
        "--stall-seconds",
        type=float,
        default=defaults.stall_seconds,
        help="a core whose loop stands still for so long is killed and started anew; inf: never",
    )
    flags.add_argument(
        "--start-seconds", type=float, default=defaults.start_seconds, help="the same for loading the models"
    )
    flags.add_argument("--api-key-file", type=Path, help="a file with the key that clients must send")
    flags.add_argument("--request-timeout", type=float, help="seconds a request may take, queue included")
    flags.add_argument(
        "--drain-seconds", type=float, default=DRAIN_SECONDS, help="for requests under way when the engine is to end"
    )
    flags.add_argument("--log-level", default="INFO")
    return flags


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    logging.basicConfig(
        level=args.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        return asyncio.run(_serve(args))
    except (TokenizerError, CatalogueError, ValueError, OSError) as error:
        print(f"the engine can't start: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


async def _serve(args: argparse.Namespace) -> int:
    """Until a signal. Raises what `build` and the start of the core raise."""
    ending = Ending()
    ending.listen()
    core, tokenizer, front_config = build(args)
    if not await start(core, ending):
        return 0
    info = core.model_info
    weights = "" if info.quantization == "none" else f", weights in {info.quantization}"
    log.info("ready: %s, %s%s on %s, %d pages of %d tokens, at http://%s:%d", info.name, info.dtype, weights,
             info.device, info.pages, info.page_size, args.host, args.port)  # fmt: skip
    front = Front(core, tokenizer, front_config)
    await serve(front, ending, host=args.host, port=args.port, drain_seconds=args.drain_seconds)
    return 0


def build(args: argparse.Namespace) -> tuple[CoreClient, Tokenizer, FrontConfig]:
    """Everything that the flags name, the core not yet started. Raises what the parts raise."""
    home = args.home.expanduser()
    model_path = locate(args.model, home)
    tokenizer = load_tokenizer(model_path)
    config = EngineConfig(
        model_path=model_path,
        served_name=args.served_name or display_name(args.model),
        device=args.device,
        dtype=args.dtype,
        quantization=args.quantization,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_waiting=args.max_waiting,
        page_size=args.page_size,
        kv_cache_bytes=args.kv_cache_mib << 20,
        num_threads=args.threads,
        prefix_cache=not args.no_prefix_cache,
        speculation=tuple(filter(None, args.speculation.split(","))),
        max_draft_tokens=args.max_draft_tokens,
        draft_model_path=locate(args.draft_model, home) if args.draft_model else None,
        stall_seconds=args.stall_seconds,
        start_seconds=args.start_seconds,
    )
    key = args.api_key_file.read_text().strip() if args.api_key_file else None
    start = Start(
        config,
        TokenizerData(tokenizer.json, tokenizer.vocab_size, tokenizer.eos_token_ids),
        embedder=locate(args.embedder, home) if args.embedder else None,
        embedder_name=display_name(args.embedder) if args.embedder else "",
    )
    front_config = FrontConfig(api_key=key, aliases=tuple(args.alias), request_timeout_seconds=args.request_timeout)
    return CoreClient(start), tokenizer, front_config


if __name__ == "__main__":
    sys.exit(main())
