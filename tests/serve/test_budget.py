"""A budget that concurrent requests share."""

from __future__ import annotations

import asyncio

from cprompt.serve.budget import Budget


def test_a_budget_is_handed_out_in_order_and_given_back() -> None:
    budget = Budget(10)
    order: list[str] = []

    async def take(name: str, units: int, release: asyncio.Event) -> None:
        async with budget.taking(units):
            order.append(name)
            await release.wait()

    async def main() -> None:
        first, rest = asyncio.Event(), asyncio.Event()
        a = asyncio.create_task(take("a", 8, first))
        b = asyncio.create_task(take("b", 5, rest))
        c = asyncio.create_task(take("c", 1, rest))  # would fit, but b asked before
        gone = asyncio.create_task(take("gone", 10, rest))
        await asyncio.sleep(0.01)
        assert order == ["a"]
        gone.cancel()
        first.set()
        await a
        await asyncio.sleep(0.01)
        assert order == ["a", "b", "c"]
        rest.set()
        await asyncio.gather(b, c)
        await asyncio.wait_for(take("all", 10, rest), 5)

    asyncio.run(main())
    assert order == ["a", "b", "c", "all"]
