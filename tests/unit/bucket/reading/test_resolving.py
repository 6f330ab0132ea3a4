"""Which members of stream sets count."""

import pytest

from liftpy_bucket.manifest.root.changes import advance_start, append, claim, create
from liftpy_bucket.manifest.stream_sets.format import SetPart
from liftpy_bucket.reading.resolving import counts, resolve
from support.manifest_kit import OTHER_PATH, PATH, fragment, member, set_object


def part_of(node, *members):
    return SetPart(node, tuple(set_object(sequence, each) for sequence, each in enumerate(members, 1)))


def root_of(*claims, end=10):
    (epoch, node, _), *others = claims
    root = create(PATH, epoch=epoch, node=node, start=0).root
    root = append(root, fragment(0, end), epoch=epoch, epochs=[(epoch, 0)]).root
    for epoch, node, start in others:
        root = claim(root, epoch=epoch, node=node, start=start).root
    return root


def pieces(resolved):
    return [(each.node, each.start, each.end) for each in resolved.members]


def test_members_of_the_claim_go_on_where_the_root_ends():
    root = root_of((1, "a", 0))
    sets = {"a": part_of("a", member(10, 20), member(0, 50, path=OTHER_PATH), member(20, 35))}
    resolved = resolve(root, sets)
    assert pieces(resolved) == [("a", 10, 20), ("a", 20, 35)]
    assert (resolved.end, resolved.ignored, resolved.epochs) == (35, (), ((1, 0),))
    assert [each.pointer.name for each in resolved.members] == [sets["a"].objects[0].name, sets["a"].objects[2].name]


def test_without_sets_the_history_ends_with_the_root():
    resolved = resolve(root_of((1, "a", 0)), {})
    assert (resolved.end, resolved.members) == (10, ())


def test_what_the_root_has_by_now_is_superseded():
    sets = {"a": part_of("a", member(0, 10), member(5, 12), member(12, 20))}
    root = root_of((1, "a", 0))
    resolved = resolve(root, sets)
    assert pieces(resolved) == [("a", 10, 12), ("a", 12, 20)]
    assert [each.member.base for each in resolved.ignored] == [0]
    assert [counts(each.members[0], "a", root) for each in sets["a"].objects] == [False, True, True]


def test_the_first_gap_ends_the_history():
    root = root_of((1, "a", 0))
    resolved = resolve(root, {"a": part_of("a", member(10, 20), member(21, 30))})
    assert (resolved.end, [each.member.base for each in resolved.ignored]) == (20, [21])
    assert counts(resolved.ignored[0].member, "a", root)  # it may still, once the gap is filled
    assert resolve(root, {"a": part_of("a", member(11, 20))}).end == 10


def test_what_a_deposed_leader_adds_later_does_not_count():
    root = root_of((1, "a", 0), (2, "b", 20))
    sets = {
        "a": part_of("a", member(10, 20), member(20, 40)),
        "b": part_of("b", member(20, 30, tier_epoch=2)),
    }
    resolved = resolve(root, sets)
    assert pieces(resolved) == [("a", 10, 20), ("b", 20, 30)]
    assert (resolved.end, resolved.epochs) == (30, ((1, 0), (2, 20)))
    assert [counts(each.members[0], "a", root) for each in sets["a"].objects] == [True, False]


def test_a_member_counts_up_to_the_next_claim():
    root = root_of((1, "a", 0), (2, "b", 15))
    sets = {"a": part_of("a", member(10, 20)), "b": part_of("b", member(15, 30, tier_epoch=2))}
    assert pieces(resolve(root, sets)) == [("a", 10, 15), ("b", 15, 30)]


def test_epoch_and_node_must_both_be_those_of_the_claim():
    root = root_of((1, "a", 0), (2, "b", 10))
    for node, epoch in (("a", 2), ("b", 1), ("c", 2)):
        sets = {node: part_of(node, member(10, 20, tier_epoch=epoch))}
        assert resolve(root, sets).end == 10
        assert not counts(sets[node].objects[0].members[0], node, root)


def test_a_node_that_leads_again_goes_on_behind_the_other():
    root = root_of((1, "a", 0), (2, "b", 20), (3, "a", 30))
    sets = {
        "a": part_of("a", member(10, 20), member(30, 40, tier_epoch=3), member(20, 25)),
        "b": part_of("b", member(20, 30, tier_epoch=2), member(30, 99, tier_epoch=2)),
    }
    resolved = resolve(root, sets)
    assert pieces(resolved) == [("a", 10, 20), ("b", 20, 30), ("a", 30, 40)]
    assert {(each.node, each.member.base) for each in resolved.ignored} == {("a", 20), ("b", 30)}


def test_what_an_earlier_claim_lost_hides_what_follows():
    root = root_of((1, "a", 0), (2, "b", 20))
    resolved = resolve(root, {"b": part_of("b", member(20, 30, tier_epoch=2))})
    assert (resolved.end, len(resolved.ignored)) == (10, 1)
    again = claim(root, epoch=3, node="c", start=resolved.end).root
    assert resolve(again, {"c": part_of("c", member(10, 30, tier_epoch=3))}).end == 30


def test_epochs_of_members_are_known():
    root = root_of((4, "a", 0))
    sets = {"a": part_of("a", member(10, 20, tier_epoch=4, epochs=[(4, 10)]), member(20, 30, tier_epoch=4))}
    assert resolve(root, sets).epochs == ((4, 0),)
    root = claim(root, epoch=6, node="b", start=15).root
    sets["b"] = part_of("b", member(15, 40, tier_epoch=6, epochs=[(4, 15), (5, 17), (6, 30)]))
    assert resolve(root, sets).epochs == ((4, 0), (5, 17), (6, 30))


def test_a_start_beyond_the_root_hides_what_lies_below_it():
    root = advance_start(root_of((1, "a", 0)), 15, snapshots={}).root
    resolved = resolve(root, {"a": part_of("a", member(10, 20), member(20, 30))})
    assert pieces(resolved) == [("a", 15, 20), ("a", 20, 30)]


def test_a_root_is_not_asked_about_other_partitions():
    with pytest.raises(AssertionError):
        counts(member(0, 10, path=OTHER_PATH), "a", root_of((1, "a", 0)))
