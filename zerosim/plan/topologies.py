"""Networks with links of their own between devices or between switches: a torus and a dragonfly.

    torus       each device has a link to both neighbours in each dimension. Rank r has the coordinates of row-major
                order. A message goes along the last dimension first, the shorter way round, and forward if both ways
                are as long (dimension-order routing); each hop has the latency of a link
    dragonfly   groups of routers. Within a group each router has a link to each other; each group has a link to each
                other group, at the router whose number is the other group's, modulo the routers. A message takes the
                shortest way: at most one link to its group's router, one to the other group, and one within it

Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology" (2008), section 4.1, describe this
minimal routing; Dally and Seitz, "Deadlock-free message routing in multiprocessor interconnection networks" (1987),
the other.
"""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Torus:
    """A torus with this number of devices in each dimension.

    >>> Torus((4, 4)).path(0, 15), Torus((4, 4)).path(5, 6)
    ([3, 13], [22])
    """

    sizes: tuple[int, ...]

    @property
    def links(self) -> int:
        """The number of links, one way each; device d has those from 2 · dimensions · d on."""
        return 2 * len(self.sizes) * prod(self.sizes)

    def path(self, source: int, to: int) -> list[int]:
        """The numbers of the links that a message passes."""
        found, place, stride = [], source, 1
        for dimension, size in reversed([*enumerate(self.sizes)]):
            ahead = (to // stride - place // stride) % size
            step = 1 if 2 * ahead <= size else -1
            for _ in range(min(ahead, size - ahead)):
                found.append(2 * (len(self.sizes) * place + dimension) + (step < 0))
                here = place // stride % size
                place += ((here + step) % size - here) * stride
            stride *= size
        return found

    def within(self, ranks: int, stride: int) -> "Torus | None":
        """The torus of a group of every `stride`-th rank; None if such groups share links.

        >>> Torus((4, 2, 2)).within(4, 1), Torus((4, 2, 2)).within(4, 4), Torus((4, 2, 2)).within(4, 2)
        (Torus(sizes=(2, 2)), Torus(sizes=(4,)), None)
        """
        numbers = range(len(self.sizes) + 1)
        spans = (self.sizes[first:last] for first in numbers for last in numbers
                 if prod(self.sizes[last:]) == stride and prod(self.sizes[first:last]) == ranks)
        return next((Torus(span) for span in spans), None)


@dataclass(frozen=True)
class Dragonfly:
    """A dragonfly of groups, routers in a group, and hosts on a router.

    >>> Dragonfly(3, 2, 1).path(0, 1), Dragonfly(3, 2, 1).path(0, 5), Dragonfly(3, 2, 1).path(0, 2)
    ([1], [9, 14], [1, 13])
    """

    groups: int
    routers: int
    hosts: int

    @property
    def links(self) -> int:
        """The number of links, one way each: those within groups by router and router, then those between groups."""
        return self.groups * (self.routers**2 + self.groups)

    def path(self, source: int, to: int) -> list[int]:
        """The numbers of the links that a message from one host to another passes, those within groups first."""
        (group, router), (other, last) = (divmod(host // self.hosts, self.routers) for host in (source, to))
        hops = [(group, router, last)] if group == other else [
            (group, router, other % self.routers), (other, group % self.routers, last)]
        found = [(each * self.routers + begin) * self.routers + end for each, begin, end in hops]
        between = [] if group == other else [self.groups * self.routers**2 + group * self.groups + other]
        return [link for link, (_, begin, end) in zip(found, hops, strict=True) if begin != end] + between
