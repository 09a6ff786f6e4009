"""A server that refuses everything: one caller probes, the others wait, and all go on when it answers."""

import asyncio

import pytest
from dubito.models import outage
from dubito.models.outage import REFUSALS, Outages


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(outage, "LONGEST_PAUSE_S", 0.1)


def refuse(outages: Outages, times: int) -> None:
    for _ in range(times):
        outages.refused()


def test_only_a_server_that_has_answered_can_have_an_outage():
    outages = Outages()
    refuse(outages, 2 * REFUSALS)
    assert outages.seconds is None
    outages.answered()
    refuse(outages, REFUSALS - 1)
    assert outages.seconds is None
    outages.refused()
    assert outages.seconds is not None
    outages.answered()
    assert outages.seconds is None


async def test_one_caller_at_a_time_probes(quick):
    outages = Outages()
    outages.answered()
    refuse(outages, REFUSALS)
    probes = 0
    is_up = False

    async def probe() -> bool:
        nonlocal probes
        probes += 1
        return is_up

    callers = [asyncio.create_task(outages.wait(probe, 60)) for _ in range(50)]
    await asyncio.sleep(0.5)
    assert 3 <= probes <= 9  # one at once, one after 0.05 s, then one every 0.1 s
    is_up = True
    await asyncio.wait_for(asyncio.gather(*callers), 3)
    assert outages.seconds is None


async def test_the_wait_ends_at_the_limit(quick):
    outages = Outages()
    outages.answered()
    refuse(outages, REFUSALS)

    async def probe() -> bool:
        return False

    await asyncio.wait_for(outages.wait(probe, 0.2), 2)
    assert outages.seconds is not None
