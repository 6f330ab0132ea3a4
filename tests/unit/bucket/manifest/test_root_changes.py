"""What may become of a root, and what is refused."""

import dataclasses

import pytest

from liftpy_bucket.errors import LineageError, ManifestCorruptError, OvertakenError, SealedError
from liftpy_bucket.manifest.lineage import check_lineage, cut_epochs, join_epochs
from liftpy_bucket.manifest.root.changes import advance_start, append, claim, create, fork, replace, seal
from liftpy_bucket.manifest.root.folding import POINTERS_MAX, fold
from liftpy_bucket.manifest.root.format import Claim, decode_root, encode_root
from liftpy_bucket.objects.setsum import NO_RECORDS
from support.manifest_kit import OTHER_PATH, PATH, fragment, sum_of


def root_of(*fragments, epoch=1, start=0):
    root = create(PATH, epoch=epoch, node="node-1", start=start).root
    for each in fragments:
        root = append(root, each, epoch=epoch, epochs=[(epoch, start)]).root
    assert decode_root(PATH, encode_root(root)) == root
    return root


def folded(root):
    """The root with all of its fragments but two in a snapshot, and the snapshots by digest."""
    for base in range(root.end, root.end + 10 * (POINTERS_MAX + 1), 10):
        change = append(root, fragment(base, base + 10), epoch=1, epochs=[(1, 0)])
        root = change.root
        if change.snapshots:
            return root, {each.pointer.digest: each for each in change.snapshots}
    raise AssertionError("it was never folded")


def test_a_root_begins_empty_and_claimed():
    root = create(PATH, epoch=3, node="node-1", start=100).root
    assert (root.version, root.start, root.end, root.setsum) == (1, 100, 100, NO_RECORDS)
    assert root.claims == (Claim(epoch=3, node="node-1", start=100),)


def test_what_is_appended_is_added():
    change = append(root_of(), fragment(0, 10), epoch=1, epochs=[(1, 0)])
    assert (change.root.version, change.root.end, change.root.setsum) == (2, 10, sum_of(range(10)))
    assert (change.root.epochs, change.gone, change.snapshots) == (((1, 0),), (), ())


@pytest.mark.parametrize(
    ("base", "end", "epoch", "epochs", "said"),
    [
        (11, 20, 1, [(1, 0)], "ends at offset 10"),
        (9, 20, 1, [(1, 0)], "ends at offset 10"),
        (10, 10, 1, [(1, 0)], "does not follow"),
        (10, 20, 0, [(1, 0)], "claimed in the bucket by node node-1 with leader epoch 1, not with 0"),
        (10, 20, 2, [(1, 0)], "not with 2"),
        (10, 20, 1, [], "nobody says of which leader epoch offset 10 is"),
        (10, 20, 1, [(1, 11)], "nobody says"),
        (10, 20, 1, [(0, 0)], "from offset 0 on the bucket holds another history"),
        (10, 20, 1, [(0, 0), (1, 7)], "leader epoch 1, here of 0"),
        (10, 20, 1, [(1, 0), (2, 15)], "uploaded in 1"),
        (10, 20, 1, [(0, 10)], "which can not follow on 1"),
    ],
)
def test_what_does_not_continue_the_history_is_refused(base, end, epoch, epochs, said):
    root = root_of(fragment(0, 10))
    with pytest.raises(LineageError, match=said):
        append(root, fragment(base, max(end, base + 1)) if end > base else bare(base), epoch=epoch, epochs=epochs)


def bare(base):
    return dataclasses.replace(fragment(base, base + 1), end=base)


def test_a_fragment_of_a_fork_is_not_appended():
    with pytest.raises(LineageError, match="does not follow"):
        append(root_of(), dataclasses.replace(fragment(0, 5), home=OTHER_PATH.home), epoch=1, epochs=[(1, 0)])


def test_a_claim_ends_the_one_before():
    root = claim(root_of(fragment(0, 10)), epoch=4, node="node-2", start=10).root
    assert root.claims == (Claim(epoch=4, node="node-2", start=10),)
    with pytest.raises(LineageError):
        append(root, fragment(10, 20), epoch=1, epochs=[(1, 0)])
    assert append(root, fragment(10, 20), epoch=4, epochs=[(1, 0), (4, 13)]).root.epochs == ((1, 0), (4, 13))


def test_claims_stay_as_long_as_sets_may_hold_something_of_them():
    root = claim(root_of(fragment(0, 10)), epoch=4, node="node-2", start=25).root
    root = claim(root, epoch=6, node="node-1", start=40).root
    assert [(each.epoch, each.start) for each in root.claims] == [(1, 0), (4, 25), (6, 40)]
    root = append(root, fragment(10, 25), epoch=6, epochs=[(1, 0)]).root
    assert [each.epoch for each in root.claims] == [4, 6]
    root = append(root, fragment(25, 30), epoch=6, epochs=[(1, 0)]).root
    assert [each.epoch for each in root.claims] == [4, 6]
    root = append(root, fragment(30, 50), epoch=6, epochs=[(1, 0)]).root
    assert [each.epoch for each in root.claims] == [6]


def test_a_claim_that_begins_below_others_ends_them():
    root = claim(root_of(), epoch=2, node="node-2", start=25).root
    root = claim(root, epoch=3, node="node-3", start=50).root
    lost = claim(root, epoch=4, node="node-4", start=25).root
    assert [(each.epoch, each.start) for each in lost.claims] == [(1, 0), (4, 25)]


@pytest.mark.parametrize(
    ("epoch", "node", "start", "said"),
    [
        (4, "node-1", 10, "not its leader any more"),
        (5, "node-1", 10, "claimed in the bucket by node node-2"),
        (6, "node-1", 9, "holds it up to 10"),
    ],
)
def test_claims_that_are_refused(epoch, node, start, said):
    root = claim(root_of(fragment(0, 10)), epoch=5, node="node-2", start=10).root
    with pytest.raises(LineageError, match=said):
        claim(root, epoch=epoch, node=node, start=start)


def test_to_claim_what_one_holds_changes_nothing():
    root = root_of(fragment(0, 10))
    again = claim(root, epoch=1, node="node-1", start=70).root
    assert again == dataclasses.replace(root, version=root.version + 1)


def test_a_sealed_partition_takes_nothing_but_lets_go():
    root = seal(root_of(fragment(0, 10), fragment(10, 20))).root
    for refused in (
        lambda: append(root, fragment(20, 30), epoch=1, epochs=[(1, 0)]),
        lambda: claim(root, epoch=2, node="node-2", start=20),
        lambda: seal(root),
    ):
        with pytest.raises(SealedError, match="sealed"):
            refused()
    assert advance_start(root, 10, snapshots={}).root.sealed


def test_a_fork_names_what_the_other_has():
    root, snapshots = folded(root_of())
    forked = fork(seal(root).root, OTHER_PATH, epoch=9, node="node-3").root
    assert {each.home for each in (*forked.snapshots, *forked.fragments)} == {PATH.home}
    assert (forked.version, forked.end, forked.setsum, forked.sealed) == (1, root.end, root.setsum, False)
    assert forked.claims == (Claim(epoch=9, node="node-3", start=root.end),)
    assert decode_root(OTHER_PATH, encode_root(forked)) == forked
    twice = fork(forked, PATH, epoch=9, node="node-3").root
    assert {each.home for each in twice.snapshots} == {PATH.home}
    with pytest.raises(LineageError, match="needs a leader epoch of 1"):
        fork(root, OTHER_PATH, epoch=0, node="node-3")
    (snapshot,) = snapshots.values()
    merged = dataclasses.replace(fragment(0, 20, nonce="merged"))
    seen = [dataclasses.replace(each, home=PATH.home) for each in snapshot.fragments[:2]]
    homed = dataclasses.replace(snapshot, pointer=forked.snapshots[0])
    change = replace(forked, seen, [merged], collected=NO_RECORDS, snapshots={homed.pointer.digest: homed})
    assert [each.home for each in change.snapshots[0].fragments[:2]] == ["", PATH.home]
    assert change.root.snapshots[0].home == ""
    assert change.gone_snapshots == forked.snapshots


def test_merging_conserves_the_sum_wherever_the_fragments_are_named():
    root, snapshots = folded(root_of())
    (snapshot,) = snapshots.values()
    every = [*snapshot.fragments, *root.fragments]
    for first in range(len(every)):
        for behind in range(first + 1, len(every) + 1):
            old = every[first:behind]
            merged = fragment(old[0].base, old[-1].end, nonce="merged")
            change = replace(root, old, [merged], collected=NO_RECORDS, snapshots=snapshots)
            assert decode_root(PATH, encode_root(change.root)) == change.root
            assert (change.root.setsum, change.root.collected) == (root.setsum, NO_RECORDS)
            assert change.gone == tuple(old)
            drafted = [each for draft in change.snapshots for each in draft.fragments]
            kept = drafted or (list(snapshot.fragments) if change.root.snapshots else [])
            assert [*kept, *change.root.fragments] == [*every[:first], merged, *every[behind:]]
            assert bool(change.gone_snapshots) == (first < len(snapshot.fragments))


def test_compaction_moves_what_it_drops_into_collected():
    root = root_of(fragment(0, 10), fragment(10, 20))
    smaller = fragment(0, 10, nonce="c", offsets=[2, 9])
    dropped = sum_of([0, 1, 3, 4, 5, 6, 7, 8])
    change = replace(
        root, root.fragments[:1], [smaller], collected=dropped, snapshots={}, delete_horizon=5, compacted_end=10
    )
    after = change.root
    assert (after.setsum + after.collected, after.collected) == (root.setsum, dropped)
    assert (after.delete_horizon, after.compacted_end, after.end) == (5, 10, 20)
    empty = replace(after, [smaller], [], collected=smaller.setsum, snapshots={}, delete_horizon=1).root
    assert (empty.fragments, empty.delete_horizon, empty.start) == (root.fragments[1:], 5, 0)
    assert decode_root(PATH, encode_root(empty)) == empty


def test_what_does_not_balance_is_refused():
    root = root_of(fragment(0, 10), fragment(10, 20))
    with pytest.raises(ManifestCorruptError, match="conserve"):
        replace(root, root.fragments, [fragment(0, 20, offsets=range(19))], collected=NO_RECORDS, snapshots={})


def test_what_the_root_does_not_name_any_more_is_not_replaced():
    root = root_of(fragment(0, 10), fragment(10, 20), fragment(20, 30))
    first, second, third = root.fragments
    for old in ([first, third], [dataclasses.replace(second, size=1)], [third, second], [fragment(30, 40)]):
        with pytest.raises(OvertakenError, match="names other fragments"):
            replace(root, old, old, collected=NO_RECORDS, snapshots={})


def test_replacing_nothing_is_a_new_version_of_the_same():
    root = root_of(fragment(0, 10))
    again = replace(root, [], [], collected=NO_RECORDS, snapshots={}, compacted_end=10).root
    assert again == dataclasses.replace(root, version=root.version + 1, compacted_end=10)


def test_the_start_takes_along_what_lies_below_it():
    root, snapshots = folded(root_of())
    (snapshot,) = snapshots.values()
    every = [*snapshot.fragments, *root.fragments]
    for start in (0, 1, 9, 10, 11, 75, snapshot.pointer.end, root.end - 1, root.end):
        change = advance_start(root, start, snapshots=snapshots)
        gone = [each for each in every if each.end <= start]
        assert change.gone == tuple(gone)
        assert (change.root.start, change.root.end) == (start, root.end)
        assert change.root.collected == sum_of(range(gone[-1].end if gone else 0))
        assert change.root.setsum + change.root.collected == root.setsum
        assert decode_root(PATH, encode_root(change.root)) == change.root
        drafts = {each.pointer.digest: each for each in change.snapshots}
        assert advance_start(change.root, 0, snapshots={**snapshots, **drafts}).root.start == start
        assert bool(change.gone_snapshots) == bool(gone)


def test_a_start_beyond_the_end_moves_the_end():
    root = claim(root_of(fragment(0, 10)), epoch=2, node="node-2", start=30).root
    root = claim(root, epoch=3, node="node-3", start=50).root
    change = advance_start(root, 40, snapshots={})
    assert (change.root.start, change.root.end, change.root.fragments) == (40, 40, ())
    assert [each.epoch for each in change.root.claims] == [2, 3]
    after = append(change.root, fragment(40, 60, epoch=3), epoch=3, epochs=[(2, 40), (3, 50)]).root
    assert after.epochs == ((1, 0), (2, 40), (3, 50))
    assert after.setsum == sum_of(range(40, 60))


def test_epochs_are_forgotten_below_the_start_but_not_the_one_it_is_in():
    root = claim(root_of(fragment(0, 10)), epoch=5, node="node-2", start=10).root
    root = append(root, fragment(10, 30), epoch=5, epochs=[(1, 0), (3, 12), (5, 20)]).root
    assert advance_start(root, 11, snapshots={}).root.epochs == ((1, 0), (3, 12), (5, 20))
    assert advance_start(root, 12, snapshots={}).root.epochs == ((3, 12), (5, 20))
    assert advance_start(root, 30, snapshots={}).root.epochs == ((5, 20),)


def test_a_small_root_is_not_folded():
    root = root_of(*(fragment(base, base + 1) for base in range(POINTERS_MAX)))
    assert fold(root) == (root, ())


@pytest.mark.parametrize(
    ("bucket", "log", "agree"),
    [
        ([], [(1, 0)], True),
        ([(1, 0)], [], True),
        ([(1, 0), (2, 50)], [(1, 0), (2, 50)], True),
        ([(1, 0), (2, 50)], [(1, 20), (2, 50), (3, 100)], True),
        ([(1, 0), (2, 50)], [(2, 60)], True),
        ([(1, 0), (2, 50)], [(1, 40)], False),
        ([(1, 0)], [(2, 0)], False),
        ([(1, 0), (2, 50)], [(1, 0), (2, 51)], False),
        ([(1, 0), (2, 50)], [(1, 0), (3, 50)], False),
        ([(1, 0), (2, 50)], [(3, 99)], False),
        ([(1, 0), (2, 50)], [(3, 100)], True),
    ],
)
def test_histories_agree_where_both_know(bucket, log, agree):
    if agree:
        check_lineage("it", bucket, log, 0, 100)
    else:
        with pytest.raises(LineageError, match="another history"):
            check_lineage("it", bucket, log, 0, 100)


def test_the_first_offset_that_differs_is_named():
    with pytest.raises(LineageError, match=r"offset 50 on .* there the record is of leader epoch 2, here of 1\."):
        check_lineage("it", [(1, 0), (2, 50), (4, 60)], [(1, 0), (4, 60)], 0, 100)


def test_histories_are_cut_and_joined():
    epochs = [(1, 0), (3, 12), (5, 20)]
    assert cut_epochs(epochs, 12, 20) == ((3, 12),)
    assert cut_epochs(epochs, 13, 21) == ((3, 13), (5, 20))
    assert cut_epochs(epochs, 30, 40) == ((5, 30),)
    assert cut_epochs([(1, 5)], 0, 3) == ()
    assert join_epochs([(1, 0)], [(1, 5), (2, 9)]) == ((1, 0), (2, 9))
