"""How a trial ends: the answer that an attempt on a throw-away object gives."""

import errno
from collections.abc import Callable

from netstack_gro.probe.report import Ability, Answer

__all__ = ["Question", "settle"]

_REFUSED = frozenset({errno.EPERM, errno.EACCES})
_ABSENT = frozenset(
    {
        errno.EAFNOSUPPORT,
        errno.EINVAL,
        errno.ENODEV,
        errno.ENOENT,
        errno.ENOPROTOOPT,
        errno.ENOSYS,
        errno.ENOTTY,
        errno.ENXIO,
        errno.EOPNOTSUPP,
        errno.EPROTONOSUPPORT,
    }
)


class Question:
    """Whether something works, before it was tried: an `Ability` without its answer."""

    def __init__(self, name: str, group: str, since: str, meaning: str, upgrade: str = "") -> None:
        self.name = name
        self._group = group
        self._since = since
        self._meaning = meaning
        self._upgrade = upgrade or f"it takes Linux {since} or later"

    def answer(self, answer: Answer, detail: str = "", advice: str = "") -> Ability:
        """The ability, answered; where the answer is no, with an advice in any case."""
        if not advice and answer is Answer.NO:
            advice = self._upgrade
        return Ability(
            name=self.name,
            group=self._group,
            answer=answer,
            since=self._since,
            meaning=self._meaning,
            detail=detail,
            advice=advice,
        )

    def untried(self, why: str, advice: str) -> Ability:
        """The ability where it cannot be tried, and why."""
        return self.answer(Answer.UNKNOWN, f"not tried, {why}", advice)


def settle(
    question: Question, attempt: Callable[[], str], right: str = "", advice: str = ""
) -> Ability:
    """What an attempt gives, whose result is a detail; whatever it raises is an answer as well.

    right: what it takes, said where it is refused; advice: how to come by that.
    """
    try:
        return question.answer(Answer.YES, attempt())
    except OSError as error:
        if error.errno in _REFUSED:
            return question.answer(
                Answer.NO, f"{right} is missing" if right else "not permitted", advice
            )
        if error.errno in _ABSENT:
            return question.answer(Answer.NO, error.strerror or "")
        return question.answer(Answer.UNKNOWN, error.strerror or str(error))
    except (AttributeError, ValueError, OverflowError) as error:
        return question.answer(Answer.UNKNOWN, str(error))
