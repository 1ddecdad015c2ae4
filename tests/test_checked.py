"""Messages with checksums, and communicators in which faults may strike: worlds as any other, until one does."""

import numpy as np
import pytest

from tests.conformance import CHECKS
from zerosim.core.errors import CollectiveError, MessageError
from zerosim.observe.faults import Faults
from zerosim.observe.location import Locator
from zerosim.observe.observed import Observed
from zerosim.scenario.fault import Fault
from zerosim.worlds.checked import TRAILER, Checked
from zerosim.worlds.local import spawn


def faulty(comm, *faults):
    return Faults(faults, None, None).around(comm)


def never_struck(comm):
    return faulty(comm, Fault("flip", step=9, collective="all_gather"))


@pytest.mark.parametrize("wrap", [Checked, never_struck, lambda comm: Checked(never_struck(comm))])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_wraps_a_world_conforms(check, wrap):
    for ranks in (1, 2, 4):
        spawn(lambda comm: check(wrap(comm)), ranks)


def carried(change):
    """What arrives of three messages of rank 0 that were changed on their way; or the error."""
    def program(comm):
        if comm.rank == 0:
            kept = []

            class Kept:
                rank, size = 0, 2

                def send(self, outgoing, *, to):
                    kept.append(outgoing.copy())

            checked = Checked(Kept())
            for number in range(3):
                checked.send(np.full(3, number, np.float32), to=1)
            for message in change(kept):
                comm.send(message, to=1)
            return None
        checked, arrived = Checked(comm), []
        for _ in range(3):
            into = np.zeros(3, np.float32)
            checked.recv(into=into, source=0)
            arrived.append(into[0])
        return arrived

    return spawn(program, 2)[1]


def with_bit(message, bit):
    changed = message.copy()
    changed[bit // 8] ^= 1 << bit % 8
    return changed


def test_every_flipped_bit_of_a_message_is_found():
    assert carried(lambda sent: sent) == [0, 1, 2]
    for bit in range(8 * (12 + TRAILER.size)):
        with pytest.raises(MessageError, match=r"rank 1: message 2 from rank 0 came with checksum"):
            carried(lambda sent, bit=bit: [sent[0], with_bit(sent[1], bit), sent[2]])


@pytest.mark.parametrize(("change", "words"), [
    (lambda sent: sent[1:] + sent[:1], "rank 1: message 1 from rank 0 was lost: message 2 arrived instead"),
    (lambda sent: [sent[0], sent[2], sent[2]], "rank 1: message 2 from rank 0 was lost: message 3 arrived instead"),
    (lambda sent: [sent[0], sent[0], sent[1]], "rank 1: message 2 from rank 0 was expected; message 1 arrived again"),
])
def test_what_is_lost_or_doubled_is_named_by_its_number(change, words):
    with pytest.raises(MessageError, match=words):
        carried(change)


def test_another_length_is_the_next_message_or_the_callers_mistake():
    def program(comm, lengths):
        checked = Checked(comm)
        for length in lengths:
            checked.send(np.ones(length), to=0)
        checked.recv(into=np.ones(2), source=0)
        checked.recv(into=np.ones(2), source=0)

    with pytest.raises(CollectiveError, match="rank 0 sent 40 × uint8 to rank 0, which receives it into 32 × uint8"):
        spawn(lambda comm: program(comm, [2, 3]), 1)

    def without_the_second(comm):
        locator = Locator("a row")
        locator.begin(1)
        lossy = faulty(comm, Fault("drop", collective="all_gather", message=2))
        observed = Observed(Checked(lossy), locator)
        send = observed.named("all_gather", observed.send)
        for length in (2, 2, 3):
            send("layers.0", np.ones(length), to=0)
        for _ in range(2):
            observed.recv(into=np.ones(2), source=0)

    lost = "rank 0 in step 1 of a row: message 2 from rank 0 was lost: message 3 arrived"
    with pytest.raises(MessageError, match=lost):
        spawn(without_the_second, 1)
