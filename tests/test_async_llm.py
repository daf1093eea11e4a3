"""AsyncLLM: requests join, stream and leave while others run; each gets what it gets alone."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from tiny import tiny_llm

from minillm.async_llm import AsyncLLM
from minillm.decoding.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


async def collect(deltas) -> tuple[str, object]:
    text, output = "", None
    async for delta in deltas:
        text, output = text + delta.text, delta.output
    return text, output


def blocks_in_use(engine: AsyncLLM) -> int:
    return engine.llm.cache.pool.num_blocks - engine.llm.cache.pool.available


def test_many_streams_at_once_are_what_each_is_alone() -> None:
    prompts = [f"{i} prompt" for i in range(9)]
    expected = [tiny_llm().generate(prompt, GREEDY)[0].outputs[0] for prompt in prompts]

    async def main():
        async with AsyncLLM(tiny_llm(max_num_seqs=3)) as engine:
            found = await asyncio.gather(*(collect(engine.generate(prompt, GREEDY)) for prompt in prompts))
            return found, blocks_in_use(engine)

    found, held = asyncio.run(main())
    assert [(text, output.outputs[0].token_ids) for text, output in found] == [
        (one.text, one.token_ids) for one in expected]
    assert held == 0


def test_n_answers_come_at_the_end() -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True)

    async def main():
        async with AsyncLLM(tiny_llm()) as engine:
            return [delta async for delta in engine.generate("hello", params)]

    (only,) = asyncio.run(main())
    assert [a.text for a in only.output.outputs] == [a.text for a in tiny_llm().generate("hello", params)[0].outputs]
    assert only.text == ""


def test_an_abort_ends_one_stream_and_leaves_the_other() -> None:
    async def main():
        async with AsyncLLM(tiny_llm()) as engine:
            long = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)
            other = asyncio.create_task(collect(engine.generate("other", GREEDY)))
            stream = engine.generate("hello", long, request_id="mine")
            await anext(stream)
            engine.abort("mine")
            rest = [delta async for delta in stream]
            with pytest.raises(ValueError, match="request 'mine' is not under way"):
                engine.abort("mine")
            return rest[-1].output, await other, engine

    output, (text, _), engine = asyncio.run(main())
    assert output.outputs[0].finish_reason == "abort" and 1 <= len(output.outputs[0].token_ids) < 80
    assert text == tiny_llm().generate("other", GREEDY)[0].outputs[0].text
    assert blocks_in_use(engine) == 0


def test_who_stops_listening_is_aborted() -> None:
    async def main():
        async with AsyncLLM(tiny_llm()) as engine:
            stream = engine.generate("hello", SamplingParams(temperature=0, max_tokens=80, ignore_eos=True))
            await anext(stream)
            await stream.aclose()
            while engine.llm.engine.has_unfinished:
                await asyncio.sleep(0.001)
            text, _ = await collect(engine.generate("other", GREEDY))
            return text, blocks_in_use(engine)

    text, held = asyncio.run(main())
    assert text == tiny_llm().generate("other", GREEDY)[0].outputs[0].text and held == 0


def test_who_is_cancelled_before_listening_is_aborted() -> None:
    async def main():
        async with AsyncLLM(tiny_llm()) as engine:
            with engine._changed:  # the thread waits
                task = asyncio.create_task(collect(engine.generate("hello", GREEDY, request_id="mine")))
                request = engine._streams["mine"].request
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                del task
            while engine._streams:
                await asyncio.sleep(0.001)
            return request, blocks_in_use(engine)

    request, held = asyncio.run(main())
    assert request.answers[0].finish_reason == "abort" and held == 0


def test_bad_input_is_refused_at_once_and_the_engine_goes_on() -> None:
    async def main():
        async with AsyncLLM(tiny_llm()) as engine:
            for prompt, words in (("", "prompt is empty"), ([999], "token id is 999"), ("x" * 200, "200 tokens")):
                with pytest.raises(ValueError, match=words):
                    engine.generate(prompt, GREEDY)
            running = engine.generate("hello", GREEDY, request_id="same")
            with pytest.raises(ValueError, match="'same' is under way: expected a new id"):
                engine.generate("hello", GREEDY, request_id="same")
            with pytest.raises(ValueError, match="'nobody' is not under way"):
                engine.abort("nobody")
            return await collect(running)

    text, _ = asyncio.run(main())
    assert text == tiny_llm().generate("hello", GREEDY)[0].outputs[0].text


def test_a_failed_step_reaches_its_streams_only() -> None:
    async def main():
        llm = tiny_llm(max_num_seqs=1)
        execute, failed = llm.engine.executor.execute, []

        def fail_once(plan):
            if not failed:
                failed.append(plan)
                raise ZeroDivisionError("once")
            return execute(plan)

        llm.engine.executor.execute = fail_once
        async with AsyncLLM(llm) as engine:
            first, second = engine.generate("a", GREEDY), engine.generate("b", GREEDY)
            with pytest.raises(ZeroDivisionError, match="once"):
                await collect(first)
            return await collect(second), blocks_in_use(engine)

    (text, _), held = asyncio.run(main())
    assert text == tiny_llm().generate("b", GREEDY)[0].outputs[0].text and held == 0


def test_a_step_that_fails_before_it_has_rows_ends_all_and_not_in_a_circle() -> None:
    async def main():
        llm = tiny_llm()
        schedule, llm.engine.scheduler.schedule = llm.engine.scheduler.schedule, lambda: 1 / 0
        async with AsyncLLM(llm) as engine:
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(collect(engine.generate("a", GREEDY)), 20)
            llm.engine.scheduler.schedule = schedule
            return await collect(engine.generate("b", GREEDY))

    assert asyncio.run(main())[0] == tiny_llm().generate("b", GREEDY)[0].outputs[0].text


@pytest.mark.filterwarnings("ignore:Exception in thread:pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_in_the_thread_leaves_nobody_waiting() -> None:
    async def main():
        engine = AsyncLLM(tiny_llm())
        engine._finish = lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(collect(engine.generate("a", GREEDY)), 20)
        with pytest.raises(RuntimeError, match="the engine is closed"):
            engine.generate("b", GREEDY)
        engine._thread.join()

    asyncio.run(main())


def test_close_ends_what_is_under_way() -> None:
    async def main():
        engine = AsyncLLM(tiny_llm())
        stream = engine.generate("hello", SamplingParams(temperature=0, max_tokens=80, ignore_eos=True))
        await anext(stream)
        engine.close()
        rest = [delta async for delta in stream]
        with pytest.raises(RuntimeError, match="the engine is closed"):
            engine.generate("a", GREEDY)
        return rest[-1].output, engine

    output, engine = asyncio.run(main())
    assert output.outputs[0].finish_reason == "abort"
    assert blocks_in_use(engine) == 0 and not engine._thread.is_alive()


def test_an_id_can_be_used_again_and_nobody_aborts_its_new_owner() -> None:
    long = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)

    async def main():
        async with AsyncLLM(tiny_llm()) as engine:
            first = engine.generate("a", GREEDY, request_id="same")
            await anext(first)
            while "same" in engine._streams:
                await asyncio.sleep(0.001)
            second = asyncio.create_task(collect(engine.generate("b", long, request_id="same")))
            await first.aclose()  # it has ended: this is no abort
            return (await asyncio.wait_for(second, 20))[1]

    assert asyncio.run(main()).outputs[0].finish_reason == "length"


def test_an_abort_that_comes_too_late_is_not_the_next_ones_of_that_id() -> None:
    async def main():
        async with AsyncLLM(tiny_llm()) as engine:
            ended, go_on, finish = threading.Event(), threading.Event(), engine._finish

            def finish_and_wait(*about):
                engine.abort("same")  # at the last moment: the order is taken when the request has ended
                finish(*about)
                ended.set()
                go_on.wait()

            engine._finish = finish_and_wait
            first = engine.generate("a", replace(GREEDY, max_tokens=1), request_id="same")
            ended.wait()
            engine._finish = finish
            second = engine.generate("b", GREEDY, request_id="same")
            go_on.set()
            assert (await collect(first))[1].outputs[0].finish_reason == "length"
            return await asyncio.wait_for(collect(second), 20)

    text, output = asyncio.run(main())
    assert text == tiny_llm().generate("b", GREEDY)[0].outputs[0].text and output.finished


def test_close_ends_what_has_not_joined_yet() -> None:
    async def main():
        engine = AsyncLLM(tiny_llm())
        with engine._changed:  # the thread cannot get in between
            stream = engine.generate("a", GREEDY)
            engine._closed = True
        engine.close()
        return (await collect(stream))[1]

    output = asyncio.run(main())
    assert output.finished and output.outputs[0].finish_reason == "abort"
