"""LLM: the face of the package, on a tiny model for what is exact and on SmolLM2 for what is real."""

from __future__ import annotations

import pytest
import torch
from tiny import END, tiny_llm

from minillm.decoding.sampling import SamplingParams
from minillm.llm import LLM

PROMPTS = ["hello", "a", "the quick brown fox", "zz top"]


@pytest.mark.parametrize("params", [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=3, top_p=0.9, max_tokens=20),
    SamplingParams(seed=4, repetition_penalty=1.2, presence_penalty=0.5, max_tokens=20, stop=["e", "q"])])
def test_a_prompt_gives_the_same_alone_and_in_a_batch(params: SamplingParams) -> None:
    llm = tiny_llm()
    together = llm.generate(PROMPTS, params)
    for prompt, output in zip(PROMPTS, together):
        (alone,) = llm.generate(prompt, params)
        assert alone.outputs[0].token_ids == output.outputs[0].token_ids
        assert alone.outputs[0].text == output.outputs[0].text
        assert alone.outputs[0].finish_reason == output.outputs[0].finish_reason
        assert output.prompt == prompt


def test_more_prompts_than_rows_are_run_in_groups_and_come_back_in_order() -> None:
    prompts = [f"prompt {i}" for i in range(7)]
    params = SamplingParams(temperature=0, max_tokens=5)
    small, large = tiny_llm(max_num_seqs=2), tiny_llm(max_num_seqs=16)
    assert ([o.outputs[0].token_ids for o in small.generate(prompts, params)]
            == [o.outputs[0].token_ids for o in large.generate(prompts, params)])
    assert [o.prompt for o in small.generate(prompts, params)] == prompts


def test_a_stream_is_the_whole_output_in_pieces() -> None:
    llm, params = tiny_llm(), SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    *pieces, last = llm.stream("hello", params)
    (whole,) = llm.generate("hello", params)
    assert "".join(p.text for p in pieces) == last.output.outputs[0].text == whole.outputs[0].text
    assert last.output.outputs[0].token_ids == whole.outputs[0].token_ids
    assert all(p.output is None for p in pieces)
    messages = [{"role": "user", "content": "hi"}]
    *_, last = llm.stream(messages, params)
    assert last.output.outputs[0].token_ids == llm.chat(messages, params).outputs[0].token_ids


def test_stop_tokens_stop_strings_and_length_are_told_apart() -> None:
    llm = tiny_llm()
    (free,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=25, ignore_eos=True))
    ids = free.outputs[0].token_ids
    assert (len(ids), free.outputs[0].finish_reason, free.outputs[0].stop_reason) == (25, "length", None)
    stop = ids[6]
    (stopped,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=25, stop_token_ids=[stop],
                                                      ignore_eos=True))
    assert stopped.outputs[0].token_ids == ids[: ids.index(stop) + 1]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", stop)
    text = free.outputs[0].text
    word = next(text[i : i + 2] for i in range(len(text) - 2) if "\ufffd" not in text[i : i + 2])
    (stopped,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=25, stop=word, ignore_eos=True))
    assert stopped.outputs[0].text == text[: text.index(word)]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", word)


def test_the_models_end_token_ends_it_and_is_not_shown() -> None:
    llm = tiny_llm()
    with torch.no_grad():
        llm.model.embed_tokens.weight[END] += 4 * llm.model.embed_tokens.weight[ord("o")]
    (output,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=60))
    completion = output.outputs[0]
    assert completion.token_ids[-1] == END
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)


def test_max_tokens_none_runs_to_the_end_of_the_context() -> None:
    llm = tiny_llm(max_model_len=40)
    (output,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 35
    assert output.outputs[0].finish_reason == "length"


def test_times_are_one_a_token_and_ascend() -> None:
    for output in tiny_llm().generate(PROMPTS, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)):
        assert len(output.outputs[0].token_times) == 9
        assert output.times.ttft > 0
        assert output.times.tpot >= 0
        assert output.times.prompt_tokens == len(output.prompt_token_ids)


def test_logprobs_come_one_entry_a_token() -> None:
    (output,) = tiny_llm().generate("hello", SamplingParams(seed=0, max_tokens=5, logprobs=3, ignore_eos=True))
    completion = output.outputs[0]
    assert len(completion.logprobs) == 5
    total = 0.0
    for token, entry in zip(completion.token_ids, completion.logprobs):
        assert 3 <= len(entry) <= 4
        assert all(v.decoded_token is not None for v in entry.values())
        total += entry[token].logprob
    assert completion.cumulative_logprob == pytest.approx(total)


@pytest.mark.parametrize(("prompts", "words"), [
    ("", "prompt is empty"), (["fine", ""], "prompt is empty"), ([[]], "prompt is empty"),
    ([1, 257], "token id is 257: expected 0 to 256"), ([-1], "token id is -1"),
    ("x" * 96, "prompt is 96 tokens: expected at most 95")])
def test_a_prompt_that_cannot_run_is_refused_before_anything_runs(prompts, words: str) -> None:
    llm = tiny_llm()
    llm.model.forward = None  # anything that ran would fail
    with pytest.raises(ValueError, match=words):
        llm.generate(prompts)
    if not isinstance(prompts, list) or len(prompts) == 1 or isinstance(prompts[0], int):
        with pytest.raises(ValueError, match=words):
            llm.stream(prompts if isinstance(prompts, str) or isinstance(prompts[0], int) else prompts[0])


@pytest.mark.parametrize(("options", "words"), [
    ({"attention": "magic"}, "'magic': expected one of"), ({"max_model_len": 1}, "max_model_len is 1"),
    ({"max_model_len": 97}, "expected 2 to 96"), ({"max_num_seqs": 0}, "max_num_seqs is 0"),
    ({"max_model_len": "x"}, "max_model_len is 'x'"), ({"max_num_seqs": None}, "max_num_seqs is None"),
    ({"attention": ["sdpa"]}, "expected one of"), ({"scheduling_policy": ["fcfs"]}, "policy is"),
    ({"swap_space_bytes": 10**17}, "swap_space_bytes is 100000000000000000: expected 0, or at least")])
def test_bad_options_are_refused(options, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tiny_llm(**options)


@pytest.mark.parametrize("device", ["tpu", 5, "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(device) -> None:
    with pytest.raises(ValueError, match="device is") as error:
        LLM("a model that is not read", device=device)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("prompts", [None, 5, [None], {"a": 1}, b"abc", [1.5], ["fine", 3]])
def test_what_is_no_prompt_is_refused(prompts) -> None:
    with pytest.raises(ValueError, match="expected a text, a list of token ids, or a list of either"):
        tiny_llm().generate(prompts)


@pytest.mark.parametrize("prompts", [[[1.5]], [["a"]], [1, "a"]])
def test_what_is_no_token_id_is_refused(prompts) -> None:
    with pytest.raises(ValueError, match="token id is"):
        tiny_llm().generate(prompts)


@pytest.mark.parametrize(("arguments", "words"), [
    ({"prompt": None}, "prompt is None: expected a text or a list of token ids"),
    ({"prompt": "\ud800"}, r"prompt is '\\ud800': expected a text without half surrogate pairs"),
    ({"params": {}}, r"params is {}: expected SamplingParams"),
    ({"priority": "x"}, "priority is 'x': expected a whole number"),
    ({"priority": float("nan")}, "priority is nan"), ({"priority": None}, "priority is None"),
    ({"cache_salt": None}, "cache_salt is None: expected a text"),
    ({"cache_salt": "\ud800"}, r"cache_salt is '\\ud800'"),
    ({"request_id": ["a"]}, r"request_id is \['a'\]: expected a text, or None for a new one")])
def test_what_no_request_can_be_made_of_is_refused_before_it_is_in_the_line(arguments, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tiny_llm().request(**{"prompt": "a", "params": SamplingParams(), **arguments})


def test_a_callers_own_ids_do_not_meet_ours() -> None:
    llm = tiny_llm()
    for name in "0123456789":
        llm.engine.add(llm.request("a", SamplingParams(max_tokens=90), request_id=name))
    assert llm.generate("b", SamplingParams(max_tokens=1))[0].finished


def test_no_prompts_give_no_outputs() -> None:
    assert tiny_llm().generate([]) == []


def test_parameters_must_be_one_or_as_many_as_prompts() -> None:
    with pytest.raises(ValueError, match="2 sampling parameters for 3 prompts"):
        tiny_llm().generate(["a", "b", "c"], [SamplingParams()] * 2)


def test_smollm2_answers(smollm2) -> None:
    output = LLM(smollm2).chat([{"role": "user", "content": "What is the capital of France?"}],
                               SamplingParams(temperature=0, max_tokens=30))
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"


def test_smollm2_gives_the_64_greedy_tokens_of_transformers(smollm2) -> None:
    """The same file, dequantized by transformers; float32 on both sides."""
    import transformers

    hub = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.path.parent, gguf_file=smollm2.path.name, dtype=torch.float32).eval()
    llm = LLM(smollm2)
    prompts = [llm.render([{"role": "user", "content": "Why is the sky blue?"}]), "The three laws of motion are"]
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    for output in llm.generate(prompts, params):
        ids = torch.tensor([output.prompt_token_ids])
        expected = hub.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, min_new_tokens=64,
                                do_sample=False)[0, ids.shape[1]:].tolist()
        assert output.outputs[0].token_ids == expected
