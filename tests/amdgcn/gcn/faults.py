"""What the executor finds. Each kind of fault is a class, so that tests can say which one they mean."""

from __future__ import annotations


class Fault(Exception):
    """A kernel did something that is wrong on the hardware. `where` is filled in by the machine."""

    where: str = ""

    def __str__(self) -> str:
        text = f"{type(self).__name__}: {super().__str__()}"
        return f"{text} ({self.where})" if self.where else text


class NotModelled(Fault):
    """An instruction, modifier or mode that the executor does not know: never guessed."""


class UninitialisedRegister(Fault):
    """A register that was never written decides an address, a branch, EXEC or what is stored."""


class MissingWait(Fault):
    """A register is used or overwritten while a load into it is in flight."""


class LdsRace(Fault):
    """Two waves touch the same LDS bytes, one of them writing, without a barrier between."""


class UnwrittenLds(Fault):
    """LDS is read that no wave of the work-group has written."""


class LdsOutOfRange(Fault):
    """An LDS address outside what the launch allocated."""


class OutOfRange(Fault):
    """A global address outside every registered range."""


class Misaligned(Fault):
    """An LDS address that its instruction does not allow."""


class MissedBarrier(Fault):
    """Waves wait at a barrier that others never reach, or wait for at another place."""


class Unspecified(Fault):
    """The manual leaves the outcome open: lanes 16-31 of a WMMA operand that differ from 0-15, say."""


class Endless(Fault):
    """More instructions than the launch was allowed."""
