"""A simulated machine: ranks that take turns, memory as weak as can be, and an MPI that works only when it is called.

    point        where another rank may go on; a schedule chooses: every one there is (`every`), or seeded ones
    early, late  what weak memory does to counters and flags: others see them before all else is there, or only once
                 the writer has passed a barrier or looked in vain. All other bytes leave and arrive at barriers alone
    clock        goes on by a `LOOK` whenever a rank looks in vain; nothing here takes real time

The code of a rank is the real one: communicators, boxes, bells, mail, and what sets up shared memory.
"""

import os
import random
import threading
import weakref
from collections import Counter, defaultdict, deque
from types import SimpleNamespace

import mpi4py
import numpy as np

from zerosim.worlds import bells, board, boxes, mpi_communicator, mpi_mail, mpi_shared
from zerosim.worlds.neighbours import read_memory

mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI  # noqa: E402

LOOK = 1e-4
MOST_LOOKS = 30_000
EAGER = 64
"""MPI delivers a message of so many bytes at once, a longer one when its sender calls MPI again."""
RING, PIECES = 128, 2


class UnwoundError(Exception):
    """Ends a rank after another has failed, or in a state that another schedule has reached."""


class Seeded:
    """A schedule drawn from a seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def choose(self, count, state):
        return self.random.randrange(count) if self.random.random() < 0.5 else 0


class Path:
    """One of every schedule: the choices of `trail`, then the first of each."""

    def __init__(self, trail, seen):
        self.trail, self.seen, self.at = trail, seen, 0

    def choose(self, count, state):
        if self.at == len(self.trail):
            if (now := state()) in self.seen:
                raise UnwoundError
            self.seen.add(now)
            self.trail.append([0, count])
        self.at += 1
        return self.trail[self.at - 1][0]


def every():
    """All schedules, each up to a state that an earlier one has reached."""
    trail, seen = [], set()
    while True:
        yield Path(trail, seen)
        while trail and trail[-1][0] == trail[-1][1] - 1:
            trail.pop()
        if not trail:
            return
        trail[-1][0] += 1


class Machine:
    """The ranks, of which one runs; `hosts` gives the host of each."""

    def __init__(self, monkeypatch, schedule, *, hosts=(0, 0), early=True, set_up=False):
        self.schedule, self.hosts, self.early, self.set_up = schedule, hosts, early, set_up
        self.ranks = range(len(hosts))
        self.gates = [threading.Semaphore(0) for _ in hosts]
        self.running, self.clock, self.error, self.ended = 0, 0.0, None, set()
        self.asleep, self.looks, self.points, self.expired = {}, Counter(), Counter(), 0
        self.landed = {}
        self.met, self.memories = defaultdict(dict), {}
        self.moving, self.inside = set(), set()
        self.outgoing, self.landing = defaultdict(list), defaultdict(list)
        self.mail = defaultdict(deque)
        self._patch(monkeypatch)

    def _patch(self, monkeypatch):
        clock = SimpleNamespace(
            monotonic=lambda: self.clock, monotonic_ns=lambda: int(self.clock * 1e9), sleep=self.sleep)
        for module in (boxes, bells, board, mpi_communicator):
            monkeypatch.setattr(module, "time", clock)
        pending = OfEach(self, set)
        for module, name, value in (
            (os, "sched_yield", self.look_in_vain), (bells, "CALL", self.futex), (bells, "YIELDS", 0),
            (boxes, "PENDING", pending), (mpi_communicator, "PENDING", pending),
            (mpi_mail, "UNFINISHED", OfEach(self, list)),
            (boxes.MOVER, "begin", lambda: self.moving.add(self.running)), (MPI, "Status", Status),
            (MPI, "Win", Window), (mpi_shared, "LARGEST", RING), (mpi_shared, "PIECES", PIECES),
            (mpi_shared, "mmap", SimpleNamespace(PAGESIZE=boxes.LINE)), (boxes, "read_memory", self.read_memory),
        ):
            monkeypatch.setattr(module, name, value)

    def run(self, program, *, sleeps=False):
        """The result of `program(comm, machine)` on each rank, which then closes; with `sleeps` they share cores."""
        results = [None] * len(self.ranks)

        def live(rank):
            self.gates[rank].acquire()
            try:
                self._go_on()
                comm = mpi_communicator.MpiCommunicator(Comm(self, rank, self.ranks), 1.0)
                if sleeps:
                    comm.rest_between_polls()
                comm.use("shared")
                self.inside.add(rank)
                results[rank] = program(comm, self)
                self.inside.discard(rank)
                comm.close()
                self.progress()
            except BaseException as error:
                self.error = self.error or error
            self.ended.add(rank)
            self._publish(rank)
            if left := self._able() or sorted(self.asleep):
                self._hand_to(left[0])

        threads = [threading.Thread(target=live, args=(rank,)) for rank in self.ranks]
        for thread in threads:
            thread.start()
        self.gates[0].release()
        for thread in threads:
            thread.join()
        if self.error is not None and not isinstance(self.error, UnwoundError):
            raise self.error
        return results

    def point(self):
        """Another rank may go on here."""
        self.points[self.running] += 1
        others = [rank for rank in self._able() if rank != self.running]
        chooses = others and (self.set_up or self.running in self.inside)
        if chooses and (chosen := self.schedule.choose(1 + len(others), self._state)):
            self._switch(others[chosen - 1])

    def look_in_vain(self):
        """A rank yields: any other goes on."""
        self.looks[self.running] += 1
        self.clock += LOOK
        assert self.looks[self.running] < MOST_LOOKS, "a rank looks in vain for ever"
        self._others_go_on()

    def sleep(self, seconds):
        """A rank sleeps, or computes, while its mover writes what waits."""
        self.asleep[self.running] = self.clock + seconds
        if self.running in self.moving:
            boxes.push_all()
        self._others_go_on()

    def futex(self, number, address, operation, value, timeout):
        """Linux's own, which is a barrier."""
        self.point()
        self._publish(self.running)
        memory, owner = next((memory, owner) for memory in self.memories.values() for owner in memory.ranks
                             if memory.views[self.running][memory.ranks.index(owner)].ctypes.data == address)
        if operation == bells.WAKE:
            self.asleep.pop(owner, None)
            return 0
        if memory.main[memory.ranks.index(owner), :4].view("u4")[0] != value:
            self.look_in_vain()
            return -1
        until = self.asleep[owner] = self.clock + bells.LONGEST
        self._others_go_on()
        self.expired += self.clock >= until
        return 0

    def read_memory(self, process, address, into):
        """A rank reads another's array, which may change before, between and after."""
        half = len(into) // 2
        for part, at in ((into[:half], address), (into[half:], address + half * into.itemsize)):
            self.point()
            read_memory(process, at, part)
        self.point()

    def meet(self, key, rank, size, value=None):
        """The values of all ranks, once all have come."""
        self.met[key][rank] = value
        while len(self.met[key]) < size:
            self.look_in_vain()
        return [found for _, found in sorted(self.met[key].items())]

    def progress(self):
        """What MPI does for the running rank when that calls it."""
        for key, letter in self.outgoing.pop(self.running, ()):
            self.mail[key].append(letter.arrive())
        for landing, content in self.landing.pop(self.running, ()):
            assert landing() is not None, "MPI writes to memory that has been freed"
            landing()[...] = content

    def _able(self):
        return [rank for rank in self.ranks
                if rank not in self.ended and self.asleep.get(rank, -1) <= self.clock]

    def _others_go_on(self):
        self._publish(self.running)
        others = [rank for rank in self._able() if rank != self.running]
        if not others and self.asleep and self.asleep.get(self.running, -1) > self.clock:
            self.clock = min(self.asleep.values())
            others = self._able()
        if others and (chosen := others[self.looks[self.running] % len(others)]) != self.running:
            self._switch(chosen)
        self.asleep.pop(self.running, None)

    def _switch(self, rank):
        mine = self.running
        self._hand_to(rank)
        self.gates[mine].acquire()
        self._go_on()
        if self.early:
            self._publish(mine)

    def _hand_to(self, rank):
        if self.early:
            self._publish(self.running)
        self.running = rank
        self.gates[rank].release()

    def _go_on(self):
        if self.error is not None:
            raise UnwoundError

    def _publish(self, rank):
        """The counters and flags that a rank has written are seen, and it sees those of others."""
        for memory in self.memories.values():
            memory.pass_on(rank, memory.counters)

    def _state(self):
        """All that the rest of a run depends on: memory, and for each rank how far it is and what it has received."""
        return (self.running, *sorted(self.points.items()), *sorted(self.asleep),
                *(into.tobytes() for into in self.landed.values()),
                *(memory.main.tobytes() + memory.views.tobytes() for memory in self.memories.values()))


class OfEach:
    """One set or list for each rank, instead of the one of a process."""

    def __init__(self, machine, kind):
        self.machine, self.all = machine, [kind() for _ in machine.ranks]

    def __getattr__(self, name):
        return getattr(self.all[self.machine.running], name)

    def __iter__(self):
        return iter(self.all[self.machine.running])

    def __len__(self):
        return len(self.all[self.machine.running])


class Memory:
    """The segments of the ranks of a host: as they are, and as each rank sees them. Fresh memory is not zero."""

    def __init__(self, ranks, size):
        self.ranks, self.main = ranks, np.full((len(ranks), size), 0xA5, np.uint8)
        self.views = np.stack([self.main] * (max(ranks) + 1))
        self.before = self.views.copy()
        self.counters = np.zeros(self.main.shape, bool)
        for start in range(boxes.LINE, size, boxes.RING + RING):
            self.counters[:, :4] = self.counters[:, start : start + 8] = True
            self.counters[:, start + boxes.LINE : start + boxes.LINE + 16] = True

    def pass_on(self, rank, these):
        """What `rank` has written of these bytes is in memory, and it sees what others have written there."""
        if rank in self.ranks:
            view, before = self.views[rank], self.before[rank]
            written = (view != before) & these
            self.main[written] = view[written]
            view[these] = before[these] = self.main[these]


class Window:
    """A window of shared memory, as one rank has it."""

    @staticmethod
    def Allocate_shared(size, unit, comm):  # noqa: N802 - mpi4py's names, as below
        window, machine = Window(), comm.machine
        window.machine, window.rank = machine, comm.members[comm.rank]
        comm.meet(None)
        window.memory = machine.memories.setdefault(comm.context, Memory(comm.members, size))
        return window

    def Shared_query(self, rank):  # noqa: N802
        return (self.memory.views[self.rank][rank],)

    def Get_attr(self, name):  # noqa: N802
        return MPI.WIN_UNIFIED

    def Lock_all(self, mode):  # noqa: N802
        pass

    def Sync(self):  # noqa: N802
        if self.machine.early:
            self.memory.pass_on(self.rank, self.memory.counters)
        self.machine.point()
        self.memory.pass_on(self.rank, np.ones_like(self.memory.counters))


class Comm:
    """An intracommunicator: `members` are the ranks of the machine that it has."""

    def __init__(self, machine, rank, members, context=()):
        self.machine, self.members, self.context = machine, [*members], context
        self.rank, self.size = self.members.index(rank), len(self.members)
        self.made = Counter()

    def meet(self, value, what="", members=None):
        """The values of all `members`, and a communicator of them that has no other's messages."""
        self.made[what] += 1
        members = self.members if members is None else members
        key = (self.context, what, *members, self.made[what])
        me = self.members[self.rank]
        return self.machine.meet(key, me, len(members), value), Comm(self.machine, me, members, key)

    def allgather(self, value):
        return self.meet(value)[0]

    def Barrier(self):  # noqa: N802
        self.meet(None)

    def Dup(self):  # noqa: N802
        return self.meet(None)[1]

    def Split_type(self, kind):  # noqa: N802
        host = self.machine.hosts[self.members[self.rank]]
        return self.meet(None, "host", [each for each in self.members if self.machine.hosts[each] == host])[1]

    def Get_group(self):  # noqa: N802
        return SimpleNamespace(Incl=lambda numbers: [self.members[number] for number in numbers if number >= 0])

    def Create_group(self, group):  # noqa: N802
        return self.meet(None, "group", group)[1]

    def Free(self):  # noqa: N802
        pass

    def Get_attr(self, name):  # noqa: N802
        return 1 << 20

    def Isend(self, memory, to, tag):  # noqa: N802
        letter = Letter(self.machine, self.rank, memory, tag)
        self.machine.outgoing[self.machine.running].append(((self.context, to), letter))
        if len(memory) <= EAGER:
            self.machine.progress()
        return letter

    def _find(self, source, tag, status):
        self.machine.progress()
        for letter in self.machine.mail[self.context, self.rank]:
            if source in (MPI.ANY_SOURCE, letter.source) and tag in (MPI.ANY_TAG, letter.tag):
                if status is not None:
                    status.letter = letter
                return letter
        return None

    def Iprobe(self, source, tag=MPI.ANY_TAG, status=None):  # noqa: N802
        return self._find(source, tag, status) is not None

    def Improbe(self, source, tag=MPI.ANY_TAG, status=None):  # noqa: N802
        letter = self._find(source, tag, status)
        if letter is not None:
            self.machine.mail[self.context, self.rank].remove(letter)
        return letter


class Letter:
    """A message of MPI's, and the request of its sender: what is in the memory when MPI works is what arrives."""

    def __init__(self, machine, source, memory, tag):
        self.machine, self.source, self.memory, self.tag, self.content = machine, source, memory, tag, None

    def arrive(self):
        self.content, self.memory = self.memory.copy(), None
        return self

    def Test(self):  # noqa: N802
        self.machine.progress()
        return self.content is not None

    def Free(self):  # noqa: N802
        pass

    def Irecv(self, landing):  # noqa: N802
        """It is written when MPI is called next."""
        self.machine.landing[self.machine.running].append((weakref.ref(landing), self.content))
        return SimpleNamespace(Test=lambda: self.machine.progress() or True)


class Status:
    """Of the message that was found last."""

    letter = None

    def Get_source(self):  # noqa: N802
        return self.letter.source

    def Get_count(self):  # noqa: N802
        return self.letter.content.nbytes

    def Get_tag(self):  # noqa: N802
        return self.letter.tag
