"""Which objects of a history key compaction writes anew, and what of them goes together. Pure.

The rules are those of `liftpy_bucket.upkeep.compaction`, which says why they are what they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_bucket.upkeep.compaction import HistoryPlan

__all__ = ["FooterFacts", "Rewrite", "RewriteSource", "Rules", "clean_end_of", "plan_rewrites"]


class FooterFacts(NamedTuple):
    """What the footer of an object says.

    Attributes:
        tombstones: How many of its records have a key and no value.
        cleaned_ns: Time since when it is clean, ns since the epoch; 0: it is not.
        keeps_replies: Whether it has a column for them.
    """

    tombstones: int
    cleaned_ns: int
    keeps_replies: bool


class RewriteSource(NamedTuple):
    """An object that is written anew.

    Attributes:
        pointer: Pointer to the object.
        is_expired: Whether its tombstones go.
    """

    pointer: StreamObjectPointer
    is_expired: bool


class Rewrite(NamedTuple):
    """Neighbours that become one object.

    Attributes:
        places: Places of the objects among all that the pass works on.
        sources: They, oldest first.
        cleaned_ns: Time since when the new object is clean, ns since the epoch; 0: it is not.
        keeps_replies: Whether the new one has a column for replies.
    """

    places: range
    sources: tuple[RewriteSource, ...]
    cleaned_ns: int
    keeps_replies: bool

    @property
    def pointers(self) -> tuple[StreamObjectPointer, ...]:
        """Pointers to the replaced objects."""
        return tuple(source.pointer for source in self.sources)


class Rules(NamedTuple):
    """How objects are written anew.

    Attributes:
        object_bytes: Neighbours become one object up to this size.
        delete_retention_ns: How long tombstones stay after what they delete is gone; None: for good.
    """

    object_bytes: int
    delete_retention_ns: int | None


class _Fate(NamedTuple):
    """What becomes of an object that does not stay as it is."""

    cleaned_ns: int
    is_expired: bool


def clean_end_of(plan: HistoryPlan) -> int:
    """Below this offset no key has two records once the pass is done."""
    end = max(plan.compacted_end, plan.pointers[-1].end)
    first_held = next((each.base for each in plan.pointers if plan.is_held(each)), end)
    return max(plan.compacted_end, min(end, first_held))


def plan_rewrites(
    plan: HistoryPlan, looks: Sequence[FooterFacts], losing: Collection[int], rules: Rules
) -> Iterator[Rewrite]:
    """What is written anew, oldest first.

    Args:
        plan: What the pass works on.
        looks: What was found in each of its objects.
        losing: Places of those that have a record that a newer one of its key supersedes.
        rules: Rules of the rewrite.
    """
    clean_end = clean_end_of(plan)
    group: list[tuple[int, _Fate]] = []
    size = 0
    for place, pointer in enumerate(plan.pointers):
        fate = _fate(plan, pointer, looks[place], clean_end, rules, loses=place in losing)
        if group and (
            fate is None
            or bool(fate.cleaned_ns) != bool(group[-1][1].cleaned_ns)
            or size + pointer.size > rules.object_bytes
        ):
            yield _rewrite(plan, looks, group)
            group, size = [], 0
        if fate is not None:
            group.append((place, fate))
            size += pointer.size
    if group:
        yield _rewrite(plan, looks, group)


def _fate(
    plan: HistoryPlan, pointer: StreamObjectPointer, look: FooterFacts, clean_end: int, rules: Rules, *, loses: bool
) -> _Fate | None:
    """None where it stays as it is."""
    if plan.is_held(pointer):
        return None
    was_clean = pointer.end <= plan.compacted_end and look.cleaned_ns > 0
    becomes_clean = pointer.end <= clean_end and not was_clean
    is_expired = (
        was_clean
        and rules.delete_retention_ns is not None
        and look.cleaned_ns + rules.delete_retention_ns <= plan.now_ns
    )
    if not loses and not (look.tombstones and (becomes_clean or is_expired)):
        return None
    if pointer.end > clean_end:
        return _Fate(0, is_expired)
    return _Fate(plan.now_ns if becomes_clean else look.cleaned_ns, is_expired)


def _rewrite(plan: HistoryPlan, looks: Sequence[FooterFacts], group: Sequence[tuple[int, _Fate]]) -> Rewrite:
    places = range(group[0][0], group[-1][0] + 1)
    sources = tuple(RewriteSource(plan.pointers[place], fate.is_expired) for place, fate in group)
    cleaned_ns = max(fate.cleaned_ns for _, fate in group)
    return Rewrite(places, sources, cleaned_ns, any(looks[place].keeps_replies for place in places))
