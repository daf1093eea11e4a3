"""`minillm generate` and `minillm chat`: text out of a model, and how fast it came.

Greedy unless told otherwise, so that the same command gives the same text. The text goes to stdout, timings to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minillm.cli.engine import Using, loaded
from minillm.cli.lines import count_of, duration, note, print_json

if TYPE_CHECKING:
    from minillm.decoding.sampling import SamplingParams
    from minillm.llm import LLM
    from minillm.serving.request import RequestOutput

Model = Annotated[str, typer.Option(help="smollm2, a hub id, a folder of safetensors, or a .gguf file.")]
Temperature = Annotated[float, typer.Option(help="0: greedy, the same text every time. Above: more varied.")]
TopP = Annotated[float, typer.Option(help="Sample from the likeliest tokens that together reach this probability.")]
TopK = Annotated[int, typer.Option(help="Sample from this many likeliest tokens; 0: from all.")]
MinP = Annotated[float, typer.Option(help="Drop tokens less likely than this fraction of the likeliest.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.")]
Stop = Annotated[list[str] | None, typer.Option(metavar="<str>", help="End at this text; may be repeated.")]
Dtype = Annotated[str, typer.Option(help="float32, float16 or bfloat16. auto: float32 on a CPU, else bfloat16.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda when there is one.")]
Attention = Annotated[str, typer.Option(
    help="sdpa (torch's own), reference (the obvious one), tiled, or triton (ours, on a GPU).")]
KVCacheDtype = Annotated[str, typer.Option(help="How K and V are kept: auto (the model's dtype), int8, fp8, int4 or "
                                           "int4-kivi. Fewer bits hold more tokens; none is faster here.")]


def register(app: typer.Typer) -> None:
    app.command()(generate)
    app.command()(chat)


def generate(
    prompt: Annotated[str, typer.Argument(help="What to ask; '-' reads it from stdin.", show_default=False)],
    model: Model = "smollm2",
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.")] = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is: no chat template.")] = False,
    stream: Annotated[bool, typer.Option(help="Show the text as it comes, or at the end.")] = True,
    dtype: Dtype = "auto",
    device: Device = None,
    attention: Attention = "sdpa",
    kv_cache_dtype: KVCacheDtype = "auto",
    using: Using = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print text, token ids and timings as JSON.")] = False,
) -> None:
    """Answer one prompt.

    Greedy by default: the same command gives the same text. The text goes to stdout; time to first token (TTFT), time
    per output token after it (TPOT) and tokens per second go to stderr.

    \b
    Examples:
      minillm generate "What is the capital of France?"
      minillm generate "Once upon a time" --raw --temperature 0.8 --seed 1
      minillm generate "Name three colours." --max-tokens 40 --json
    """
    params = sampling(temperature, top_p, top_k, min_p, seed, stop, max_tokens)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise ValueError("prompt is empty: expected some text")
    with loaded(model, dtype, device, attention, using, kv_cache_dtype) as llm:
        asked = text if raw else as_chat(llm, model, [{"role": "user", "content": text}])
        output = show(llm, asked, params, quiet=as_json, at_once=not stream)
    if as_json:
        print_json(as_plain(output, llm))
    else:
        note(timing_line(output))


def chat(
    model: Model = "smollm2",
    system: Annotated[str | None, typer.Option(help="Instructions that hold for the whole conversation.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of one answer at most.")] = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    dtype: Dtype = "auto",
    device: Device = None,
    attention: Attention = "sdpa",
    kv_cache_dtype: KVCacheDtype = "auto",
    using: Using = None,
) -> None:
    """Talk with a model; after each answer, its tokens per second.

    /exit or the end of the input leaves, /reset starts afresh. When a conversation outgrows the model's context, its
    oldest turns are dropped, which is said. Lines may come from a pipe.

    \b
    Examples:
      minillm chat
      minillm chat --system "Answer in one sentence." --temperature 0.7
      echo "What is the capital of France?" | minillm chat
    """
    params = sampling(temperature, top_p, top_k, min_p, seed, None, max_tokens)
    with loaded(model, dtype, device, attention, using, kv_cache_dtype) as llm:
        start = [{"role": "system", "content": system}] if system else []
        as_chat(llm, model, [*start, {"role": "user", "content": "?"}])  # refuse before the first line is typed
        converse(llm, start, params)


def converse(llm: LLM, start: list[dict[str, str]], params: SamplingParams) -> None:
    """Read lines, stream answers, until /exit or the end of the input."""
    note(f"{llm.loaded.path.stem}, {count_of(llm.max_model_len, 'token')} of context. /exit leaves, /reset starts "
         "afresh.")
    messages = list(start)
    for line in typed_lines():
        if line == "/exit":
            return
        if line == "/reset":
            messages = list(start)
            continue
        try:
            asked = fit(llm, [*messages, {"role": "user", "content": line}], params.max_tokens)
            output = show(llm, asked, params)
        except ValueError as error:  # say, a line longer than the context: the conversation goes on without it
            note(f"minillm: {error}")
            continue
        messages = [*asked, {"role": "assistant", "content": output.outputs[0].text}]
        note(timing_line(output))


def typed_lines() -> Iterator[str]:
    """Lines of stdin that hold something, with a prompt and line editing when somebody sits there."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    import readline  # noqa: F401  (gives input() its history and arrow keys)

    while True:
        try:
            line = input("\n> ").strip()
        except EOFError:
            print()
            return
        if line:
            yield line


def fit(llm: LLM, messages: list[dict[str, str]], max_tokens: int) -> list[dict[str, str]]:
    """`messages` without the oldest turns, so that `max_tokens` have room; the last message always stays."""
    kept = list(messages)
    first = 1 if kept[0]["role"] == "system" else 0
    while len(kept) > first + 1 and len(llm.tokenizer.encode(llm.render(kept))) + max_tokens > llm.max_model_len:
        del kept[first : first + 2]  # a question and its answer
    if len(kept) < len(messages):
        note(f"(the conversation outgrew the context of {llm.max_model_len:,} tokens: dropping its first "
             f"{len(messages) - len(kept)} messages)")
    return kept


def sampling(temperature: float, top_p: float, top_k: int, min_p: float, seed: int | None, stop: list[str] | None,
             max_tokens: int) -> SamplingParams:
    """The flags as SamplingParams. Raises ValueError before a model is loaded."""
    from minillm.decoding.sampling import SamplingParams

    return SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, stop=stop or None,
                          max_tokens=max_tokens)


def as_chat(llm: LLM, name: str, messages: list[dict[str, str]]) -> str:
    """The conversation in the model's chat template. Raises ValueError for a model without one."""
    if llm.tokenizer.chat_template is None:
        raise ValueError(f"{name} has no chat template: expected a chat model, or generate --raw")
    return llm.render(messages)


def show(llm: LLM, asked: Any, params: SamplingParams, quiet: bool = False, at_once: bool = False) -> RequestOutput:
    """Run one request and print its text as it comes (or at once, or not at all)."""
    for delta in llm.stream(asked, params):
        if not (quiet or at_once):
            print(delta.text, end="", flush=True)
    if not quiet:
        print(delta.output.outputs[0].text if at_once else "", flush=True)
    return delta.output


def timing_line(output: RequestOutput) -> str:
    """`[9 tokens from a prompt of 37: TTFT 98 ms, TPOT 51 ms, 19.6 tokens/s]`: the rate is decode's, 1 / TPOT."""
    times, answer = output.times, output.outputs[0]
    cached = f", {output.num_cached_tokens} of them cached" if output.num_cached_tokens else ""
    made = count_of(len(answer.token_ids), "token")
    line = f"{made} from a prompt of {times.prompt_tokens}{cached}: TTFT {duration(times.ttft)}"
    if times.tpot is not None:
        line += f", TPOT {duration(times.tpot)}, {1 / times.tpot:.1f} tokens/s"
    return f"[{line}{', cut at --max-tokens or the context' if answer.finish_reason == 'length' else ''}]"


def as_plain(output: RequestOutput, llm: LLM) -> dict[str, Any]:
    """What --json prints; times in seconds."""
    times, answer = output.times, output.outputs[0]
    return {
        "text": answer.text, "finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason,
        "prompt_tokens": times.prompt_tokens, "cached_tokens": output.num_cached_tokens,
        "output_tokens": len(answer.token_ids), "token_ids": answer.token_ids,
        "ttft_s": times.ttft, "tpot_s": times.tpot, "tokens_per_second": None if times.tpot is None else 1 / times.tpot,
        "model": llm.loaded.name, "dtype": str(llm.model.dtype).removeprefix("torch."), "device": str(llm.device),
        "attention": llm.attention,
    }
