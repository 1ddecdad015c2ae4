"""The conformance suite in the local world, and what it says of broken communicators."""

from collections import defaultdict, deque
from functools import cache

import numpy as np
import pytest

from tests.conformance import CHECKS, a_second_thread_is_refused, face_of
from zerosim.collectives import all_reduce
from zerosim.comm import SendsFirst, among, check_rank
from zerosim.errors import CollectiveError, Deadlock, ZerosimError
from zerosim.worlds.delivery import check_into, check_match, check_payload, deliver
from zerosim.worlds.local import LocalWorld, spawn


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("check", [*CHECKS, a_second_thread_is_refused], ids=lambda check: check.__name__)
def test_local_world_conforms(check, ranks):
    for seed in range(3):
        spawn(check, ranks, seed=seed)


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


def test_a_local_worlds_sends_may_wait_for_their_receivers():
    with pytest.raises(Deadlock):
        LocalWorld(2, sends="rendezvous").run(lambda comm: comm.send(np.zeros(1), to=1 - comm.rank))


class LastRankFirst(LocalWorld):
    def run(self, program):
        return super().run(program)[::-1]


class OneTooFew(LocalWorld):
    def run(self, program):
        return spawn(program, self.ranks - 1)


class OneChannelTwice(LocalWorld):
    def run(self, program):
        def noted(comm):
            vars(self)["comm"] = comm
            return program(comm)

        return super().run(noted)

    def channel(self):
        return self.comm


class KeepsToItsOwnMemory(LocalWorld):
    copies_messages = True


class TakesMemoryForNothing(LocalWorld):
    def take_buffers_from(self, allocate):
        allocate(1, np.uint8, kind="buffers", owner="messages")


class ClaimsProcesses(LocalWorld):
    rank_is_process = True


class SwallowsWhatIsRaised(LocalWorld):
    def run(self, program):
        try:
            return super().run(program)
        except ZeroDivisionError:
            return []


class IsNowhere(LocalWorld):
    words = "in this process"


@pytest.mark.parametrize("broken", [
    LastRankFirst, OneTooFew, OneChannelTwice, KeepsToItsOwnMemory, TakesMemoryForNothing, ClaimsProcesses,
    SwallowsWhatIsRaised, IsNowhere,
])
def test_a_world_with_another_face_is_seen(broken):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        face_of(broken(3))


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


class SendsWithoutCopying(Mailbox):
    def kept(self, outgoing):
        return outgoing


class LastFirst(Mailbox):
    def taken(self, mail):
        return mail.pop()


class SmallestFirst(Mailbox):
    def taken(self, mail):
        smallest = min(range(len(mail)), key=lambda index: mail[index].nbytes)
        mail.rotate(-smallest)
        taken = mail.popleft()
        mail.rotate(smallest)
        return taken


class DropsEmptyMessages(Mailbox):
    def send(self, outgoing, *, to):
        if outgoing.size:
            super().send(outgoing, to=to)


class SwapsOperands(Mailbox):
    def deliver(self, arrived, into, reduce):
        deliver(arrived, into, reduce and (lambda arrived, mine: reduce(mine, arrived)))


class IgnoresReduce(Mailbox):
    def deliver(self, arrived, into, reduce):
        into[...] = arrived


class FillsACopyOfViews(Mailbox):
    def deliver(self, arrived, into, reduce):
        deliver(arrived, np.ascontiguousarray(into), reduce)


class ErasesWhatWasSent(Mailbox):
    def send(self, outgoing, *, to):
        super().send(outgoing, to=to)
        outgoing[...] = 0


class FlattensInMemoryOrder(Mailbox):
    def kept(self, outgoing):
        return outgoing.ravel("K").reshape(outgoing.shape).copy()


class LosesTheSignOfZero(Mailbox):
    def kept(self, outgoing):
        return np.where(outgoing == 0, np.zeros_like(outgoing), outgoing)


class LosesLongIntegers(Mailbox):
    def kept(self, outgoing):
        through = np.float64 if outgoing.dtype.kind in "iu" else outgoing.dtype
        return outgoing.astype(through).astype(outgoing.dtype)


class ReceivesFromTheLeft(Mailbox):
    def exchange(self, outgoing, *, to, into, source, reduce=None):
        super().exchange(outgoing, to=to, into=into, source=(self.rank - 1) % self.size,
                         reduce=reduce)


class DoesOneExchangeAfterAnother(Mailbox):
    def exchange_all(self, exchanges):
        for each in exchanges:
            super().exchange_all([each])


class NeverSendsToItself(Mailbox):
    def send(self, outgoing, *, to):
        if to != self.rank:
            super().send(outgoing, to=to)


class TakesAnyLength(Mailbox):
    def recv(self, *, into, source, reduce=None):
        self.comm.recv(into=np.zeros(0), source=source)
        arrived = self.taken(self.mail[source, self.rank])
        self.deliver(np.resize(arrived, into.shape), into, reduce)


class SendsAnything(Mailbox):
    def check(self, payload, role):
        pass


class WrapsRanks(Mailbox):
    def send(self, outgoing, *, to):
        super().send(outgoing, to=to % self.size)


class TakesAnyBytes(Mailbox):
    def recv(self, *, into, source, reduce=None):
        self.comm.recv(into=np.zeros(0), source=source)
        self.deliver(self.taken(self.mail[source, self.rank]).view(into.dtype), into, reduce)


class KeepsWhateverItReduces(Mailbox):
    def deliver(self, arrived, into, reduce):
        into[...] = np.resize(np.asarray(reduce(arrived, into) if reduce else arrived, into.dtype), into.shape)


class ReceivesNothing(Mailbox):
    def recv(self, *, into, source, reduce=None):
        self.comm.recv(into=np.zeros(0), source=source)
        self.taken(self.mail[source, self.rank])


PLANTED = {
    SendsWithoutCopying: "check_sender_may_reuse_its_array",
    LastFirst: "check_early_messages_wait",
    SmallestFirst: "check_order_between_two_ranks",
    DropsEmptyMessages: "check_zero_length_is_a_message",
    SwapsOperands: "check_reduce_with_a_function",
    IgnoresReduce: "check_reduce_on_recv",
    FillsACopyOfViews: "check_noncontiguous_views",
    ErasesWhatWasSent: "check_reduce_does_not_touch_what_was_sent",
    FlattensInMemoryOrder: "check_noncontiguous_views",
    LosesTheSignOfZero: "check_bits_survive",
    LosesLongIntegers: "check_dtypes",
    DoesOneExchangeAfterAnother: "check_exchanges_at_once",
    ReceivesFromTheLeft: "check_exchange_from_elsewhere",
    NeverSendsToItself: "check_message_to_self",
    TakesAnyLength: "check_wrong_length_is_refused",
    TakesAnyBytes: "check_wrong_dtype_is_refused",
    KeepsWhateverItReduces: "check_a_function_must_return_what_fits",
    SendsAnything: "check_what_cannot_travel_is_refused",
    WrapsRanks: "check_bad_rank_is_refused",
    ReceivesNothing: "check_exchange_with_neighbours",
}


@cache
def failed_checks(communicator, sends="buffered"):
    """The names of the checks that `communicator` fails on three ranks."""
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
    assert failed_checks(Mailbox) == set()


@pytest.mark.parametrize("broken", PLANTED, ids=lambda broken: broken.__name__)
def test_planted_bug_is_caught(broken):
    assert PLANTED[broken] in failed_checks(broken)


def test_waiting_for_the_receiver_is_caught():
    assert "check_large_messages_are_buffered" in failed_checks(Mailbox, sends="rendezvous")


def test_every_check_catches_a_planted_bug():
    caught = failed_checks(Mailbox, sends="rendezvous").union(*map(failed_checks, PLANTED))
    assert caught == {check.__name__ for check in CHECKS}
