"""A server that refuses everything: one caller probes, the others wait, and all go on when it answers."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from dubito.models import outage
from dubito.models.outage import REFUSALS, Outages


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(outage, "LONGEST_PAUSE_S", 0.1)


@dataclass
class Clock:
    """A clock that waiting moves. `probes`: when the server was probed; it answers from `up` on."""

    now: float = 0.0
    up: float = 0.0
    probes: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def probe(self) -> bool:
        self.probes.append(self.now)
        return self.now >= self.up


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(outage, "asyncio", SimpleNamespace(sleep=clock.sleep))
    return clock


def down() -> Outages:
    """A server in an outage that begins now."""
    outages = Outages("http://mill:8000/v1")
    outages.answered()
    refuse(outages, REFUSALS)
    return outages


def refuse(outages: Outages, times: int) -> None:
    for _ in range(times):
        outages.refused()


def test_only_a_server_that_has_answered_can_have_an_outage():
    outages = Outages("http://mill:8000/v1")
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
    outages = Outages("http://mill:8000/v1")
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
    failed, is_up = probes, True
    await asyncio.wait_for(asyncio.gather(*callers), 30)
    assert probes == failed + 1, "one finds out for all"
    assert outages.seconds is None


async def test_the_wait_ends_at_the_limit(quick):
    outages = Outages("http://mill:8000/v1")
    outages.answered()
    refuse(outages, REFUSALS)

    async def probe() -> bool:
        return False

    await asyncio.wait_for(outages.wait(probe, 0.2), 30)
    assert outages.seconds is not None


def test_an_outage_lasts_since_the_first_refusal(clock):
    outages = Outages("http://mill:8000/v1")
    outages.answered()
    outages.refused()
    clock.now = 5.0
    refuse(outages, REFUSALS - 1)
    assert outages.seconds == 5.0


async def test_the_pauses_double_up_to_the_longest_and_begin_anew_with_the_next_outage(clock):
    outages = down()
    clock.up = 40.0
    assert await outages.wait(clock.probe, 1000)
    assert clock.probes == [0, 1, 3, 7, 15, 30, 45]
    refuse(outages, REFUSALS)
    clock.probes.clear()
    clock.up = 60.5
    assert await outages.wait(clock.probe, 1000)
    assert clock.probes == [60, 61]


async def test_who_only_waits_learns_of_another_callers_failed_probe(clock):
    outages = down()
    clock.up = 3.0
    assert await outages.wait(clock.probe, 1.5), "probes twice and gives up"
    assert clock.probes == [0, 1]
    assert await outages.wait(clock.probe, 1000)
    refuse(outages, REFUSALS)
    assert not await outages.wait(clock.probe, 1000), "in this outage no probe has failed"
    assert clock.probes == [0, 1, 3, 7]


async def test_an_outage_is_logged_once_when_it_is_waited_for_and_when_it_ends(clock, caplog):
    outages = down()
    clock.up = 20.0
    assert await outages.wait(clock.probe, 300)
    begun = "http://mill:8000/v1 does not answer: start it again. Requests wait for it up to 300 s (DUBITO_OUTAGE_S)."
    assert caplog.messages == [begun, "http://mill:8000/v1 answers again."]
    refuse(outages, REFUSALS)
    assert not await outages.wait(clock.probe, 300)
    assert len(caplog.messages) == 2, "a server that answers every probe has no outage"
