"""The conformance suite in the local world, and what it says of broken communicators."""

from collections import defaultdict, deque
from functools import cache

import numpy as np
import pytest

from tests.conformance import CHECKS, face_of, objects_arrive
from tests.sampling import one_in
from zerosim.collectives import all_reduce
from zerosim.core.comm import SendsFirst, among, check_rank
from zerosim.core.errors import CollectiveError, ZerosimError
from zerosim.worlds.delivery import check_into, check_match, check_payload, deliver
from zerosim.worlds.local import LocalWorld, spawn


@pytest.mark.parametrize("ranks", one_in(3, [1, 4, 8, 3, 7, 5, 2]))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_local_world_conforms(check, ranks):
    for seed in range(3):
        spawn(check, ranks, seed=seed)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_objects_arrive(ranks):
    spawn(objects_arrive, ranks)


NAMING_RANKS = {"check_wrong_length_is_refused", "check_wrong_dtype_is_refused"}


@pytest.mark.parametrize("ranks", [[0], [0, 1, 2], [2, 0], [3, 1, 2], [4, 3, 2, 1, 0]])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_some_ranks_of_a_world_conform(check, ranks):
    """Errors name the ranks of the world, which these checks know where the numbers are the same."""
    if check.__name__ in NAMING_RANKS:
        ranks = range(len(ranks))
    spawn(lambda comm: check(among(comm, ranks)) if comm.rank in ranks else None, ranks=5)


def test_an_error_among_some_ranks_names_those_of_the_world():
    def program(comm):
        some = among(comm, [3, 1])
        some.send(np.zeros(2), to=1 - some.rank)
        some.recv(into=np.zeros(3), source=1 - some.rank)

    with pytest.raises(CollectiveError, match=r"rank 3 sent .* to rank 1|rank 1 sent .* to rank 3"):
        spawn(lambda comm: program(comm) if comm.rank in (1, 3) else None, ranks=4)


def test_two_groups_of_ranks_work_at_once_and_keep_apart():
    def program(comm):
        row, column = [4 * (comm.rank // 4) + k for k in range(4)], [comm.rank % 4 + 4 * k for k in range(3)]
        return all_reduce(among(comm, column), all_reduce(among(comm, row), [2**comm.rank])).tolist()

    assert spawn(program, ranks=12) == [[2**12 - 1]] * 12


@pytest.mark.parametrize(("ranks", "said"), [
    ([0, 3], "ranks=3 is not a rank"), ([0, True], "ranks=True"), ([0, 1, 0], "names a rank twice"),
    ([1, 2], "lack rank 0"),
])
def test_ranks_that_cannot_be_a_group_are_refused(ranks, said):
    with pytest.raises(CollectiveError, match=said):
        spawn(lambda comm: among(comm, ranks) if comm.rank == 0 else None, ranks=3)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_local_world_has_the_face_of_a_world(ranks):
    face_of(LocalWorld(ranks, seed=ranks))


def run_and_swallow(self, program):
    try:
        return LocalWorld.run(self, program)
    except ZeroDivisionError:
        return []


FACES = {
    "the last rank first": {"run": lambda self, program: LocalWorld.run(self, program)[::-1]},
    "one rank too few": {"run": lambda self, program: spawn(program, self.ranks - 1)},
    "takes memory for nothing": {
        "take_buffers_from": lambda self, allocate: allocate(1, np.uint8, kind="buffers", owner="messages")},
    "claims processes": {"rank_is_process": True},
    "swallows what is raised": {"run": run_and_swallow},
    "is nowhere": {"words": "in this process"},
}
"""What is wrong with a world's face, and what it has instead of the local world's."""


@pytest.mark.parametrize("wrong", FACES)
def test_a_world_with_another_face_is_seen(wrong):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        face_of(type("Wrong", (LocalWorld,), FACES[wrong])(3))


class Mailbox(SendsFirst):
    """A correct communicator over another, with a step to override for every way of being wrong.

    Messages lie in `mail`, which all ranks share; what really travels is an empty token for each.
    """

    def __init__(self, comm, mail):
        self.comm, self.mail = comm, mail
        self.rank, self.size = comm.rank, comm.size

    def send(self, outgoing, *, to):
        check_rank(to, self.size, "to")
        self.check(outgoing, "outgoing")
        self.mail[self.rank, to].append(self.kept(outgoing))
        self.comm.send(np.zeros(0), to=to)

    def recv(self, *, into, source, reduce=None):
        check_rank(source, self.size, "source")
        self.check(into, "into")
        self.comm.recv(into=np.zeros(0), source=source)
        arrived = self.taken(self.mail[source, self.rank])
        check_match(arrived, into, source=source, rank=self.rank)
        self.deliver(arrived, into, reduce)

    def check(self, payload, role):
        check_payload(payload, role)
        if role == "into":
            check_into(payload)

    def kept(self, outgoing):
        return outgoing.copy()

    def taken(self, mail):
        return mail.popleft()

    def deliver(self, arrived, into, reduce):
        deliver(arrived, into, reduce)


def smallest_first(self, mail):
    smallest = min(range(len(mail)), key=lambda index: mail[index].nbytes)
    mail.rotate(-smallest)
    taken = mail.popleft()
    mail.rotate(smallest)
    return taken


def through_float64(self, outgoing):
    through = np.float64 if outgoing.dtype.kind in "iu" else outgoing.dtype
    return outgoing.astype(through).astype(outgoing.dtype)


def sends_and_erases(self, outgoing, *, to):
    Mailbox.send(self, outgoing, to=to)
    outgoing[...] = 0


def exchanges_one_after_another(self, exchanges):
    for exchange in exchanges:
        Mailbox.exchange_all(self, [exchange])


def receives_from_the_left(self, outgoing, *, to, into, source, reduce=None):
    Mailbox.exchange(self, outgoing, to=to, into=into, source=(self.rank - 1) % self.size, reduce=reduce)


def receives(fitted):
    """A `recv` that delivers what `fitted` makes of the message and of the array for it, without a check."""
    def recv(self, *, into, source, reduce=None):
        self.comm.recv(into=np.zeros(0), source=source)
        self.deliver(fitted(self.taken(self.mail[source, self.rank]), into), into, reduce)

    return recv


def keeps_what_it_reduces(self, arrived, into, reduce):
    into[...] = np.resize(np.asarray(reduce(arrived, into) if reduce else arrived, into.dtype), into.shape)


PLANTED = {
    "sends without copying": ("check_sender_may_reuse_its_array", {"kept": lambda self, outgoing: outgoing}),
    "last first": ("check_early_messages_wait", {"taken": lambda self, mail: mail.pop()}),
    "smallest first": ("check_order_between_two_ranks", {"taken": smallest_first}),
    "drops empty messages": ("check_zero_length_is_a_message", {
        "send": lambda self, outgoing, *, to: outgoing.size and Mailbox.send(self, outgoing, to=to)}),
    "swaps operands": ("check_reduce_with_a_function", {
        "deliver": lambda self, arrived, into, reduce: deliver(
            arrived, into, reduce and (lambda arrived, mine: reduce(mine, arrived)))}),
    "ignores reduce": ("check_reduce_on_recv", {
        "deliver": lambda self, arrived, into, reduce: np.copyto(into, arrived)}),
    "fills a copy of views": ("check_noncontiguous_views", {
        "deliver": lambda self, arrived, into, reduce: deliver(arrived, np.ascontiguousarray(into), reduce)}),
    "erases what was sent": ("check_reduce_does_not_touch_what_was_sent", {"send": sends_and_erases}),
    "flattens in memory order": ("check_noncontiguous_views", {
        "kept": lambda self, outgoing: outgoing.ravel("K").reshape(outgoing.shape).copy()}),
    "loses the sign of zero": ("check_bits_survive", {
        "kept": lambda self, outgoing: np.where(outgoing == 0, np.zeros_like(outgoing), outgoing)}),
    "loses long integers": ("check_dtypes", {"kept": through_float64}),
    "does one exchange after another": ("check_exchanges_at_once", {"exchange_all": exchanges_one_after_another}),
    "receives from the left": ("check_exchange_from_elsewhere", {"exchange": receives_from_the_left}),
    "never sends to itself": ("check_message_to_self", {
        "send": lambda self, outgoing, *, to: to == self.rank or Mailbox.send(self, outgoing, to=to)}),
    "takes any length": ("check_wrong_length_is_refused", {
        "recv": receives(lambda arrived, into: np.resize(arrived, into.shape))}),
    "takes any bytes": ("check_wrong_dtype_is_refused", {
        "recv": receives(lambda arrived, into: arrived.view(into.dtype))}),
    "keeps whatever it reduces": ("check_a_function_must_return_what_fits", {"deliver": keeps_what_it_reduces}),
    "sends anything": ("check_what_cannot_travel_is_refused", {"check": lambda self, payload, role: None}),
    "wraps ranks": ("check_bad_rank_is_refused", {
        "send": lambda self, outgoing, *, to: Mailbox.send(self, outgoing, to=to % self.size)}),
    "receives nothing": ("check_exchange_with_neighbours", {
        "recv": receives(lambda arrived, into: into), "deliver": lambda self, arrived, into, reduce: None}),
}
"""What a communicator does wrong, the check that notices, and the methods of `Mailbox` that it has instead."""


@cache
def failed_checks(wrong=None, sends="buffered"):
    """The names of the checks that `Mailbox`, or what is `wrong` of PLANTED, fails on three ranks."""
    communicator = type("Wrong", (Mailbox,), PLANTED[wrong][1]) if wrong else Mailbox
    failed = set()
    for check in CHECKS:
        mail = defaultdict(deque)
        try:
            spawn(lambda comm, check=check, mail=mail: check(communicator(comm, mail)), 3,
                  sends=sends)
        except (AssertionError, AttributeError, TypeError, ValueError, ZerosimError, pytest.fail.Exception):
            failed.add(check.__name__)
    return failed


def test_a_correct_communicator_fails_no_check():
    assert failed_checks() == set()


@pytest.mark.parametrize("wrong", PLANTED)
def test_planted_bug_is_caught(wrong):
    assert PLANTED[wrong][0] in failed_checks(wrong)


def test_waiting_for_the_receiver_is_caught():
    assert "check_large_messages_are_buffered" in failed_checks(sends="rendezvous")


def test_every_check_catches_a_planted_bug():
    caught = failed_checks(sends="rendezvous").union(*map(failed_checks, PLANTED))
    assert caught == {check.__name__ for check in CHECKS}
