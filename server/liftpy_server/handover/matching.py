"""Which of the messages that two subscribers heard has the first of them stored? A pure function of contents and marks.

For a while the old leader (which stores) and the next one (which holds) both hear every message. NATS numbers nothing,
keeps the order of each publisher only, and many messages have the same content. So both also hear *marks*: messages
of the next leader's own, which cut what each of them heard into segments 0..K, at the same moments:

    stored   what the old leader stored, up to when it ceased to, some time after the last mark
    held     what the next leader heard; it goes on

The two hear one message at most a segment apart. What is stored in segment 0 may have been heard by the next leader
before it began to hold; all that is stored later it holds. All that it holds before the last mark is stored. For one
content, with `s(j)` and `h(j)` times in segment `j` of stored and held, the number of messages that are both is thus

    at least   s(1) + .. + s(K)   and   h(0) + .. + h(K-1)
    at most    s(0) + .. + s(K)

which settles it for all contents that come once within the time of the marks. Otherwise each mark tells: it is
`h(0) + .. + h(i-1)` of those before mark `i`, and `s(i) + .. + s(K)` of those after it, but for messages that one of
the two heard before the mark and the other after it. The median of the marks is taken, within the bounds; the upper
bound comes first, so that nothing is taken for stored that is not in the log.

Each publisher's messages reach both in the same order, so that those that are both are the first of their content.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["stored_of_held"]


def stored_of_held(stored: Sequence[Sequence[Hashable]], held: Sequence[Sequence[Hashable]]) -> Counter[Hashable]:
    """Count for each content how many of the first messages held with it are stored; none are left out.

    Args:
        stored: The contents of what is stored, by segment.
        held: The contents of what was held before the last mark, by segment.
    """
    assert len(stored) == len(held) + 1 >= 2, "both are cut by the same marks, one at least"
    of_stored = [Counter(segment) for segment in stored]
    of_held = [Counter(segment) for segment in held]
    before: Counter[Hashable] = Counter()
    for each in of_held:
        before.update(each)
    times: Counter[Hashable] = Counter()
    for each in of_stored:
        times.update(each)
    both: Counter[Hashable] = Counter()
    for content, count in times.items():
        if count == 1:  # as below, in short
            if before[content] or not of_stored[0][content]:
                both[content] = 1
            continue
        s = [segment[content] for segment in of_stored]
        h = [segment[content] for segment in of_held]
        by_marks = sorted(sum(h[:mark]) + sum(s[mark:]) for mark in range(1, len(s)))
        at_least = max(sum(s[1:]), sum(h))
        both[content] = min(count, max(at_least, by_marks[(len(by_marks) - 1) // 2]))
    return +both
