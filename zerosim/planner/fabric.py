"""What connects hosts beyond a link for each: network cards, leaf switches, and switches that add.

    card    a host's ranks share its cards out in turn: rank r of a host has card r modulo their number
    rail    the cards with one number in all hosts, if each number has leaf switches of its own
    leaf    a switch with the cards of `hosts_per_leaf` hosts, or with one rail's; its links to all other leaves have
            together what its cards have, over `oversubscription`

`collectives = "written"` follows each message over these links. Pipelined rings pass from host to host once for each
card, so they load a leaf's links with the traffic of one host, whichever hosts are behind it.

A switch that adds (NVLink SHARP) halves what an all-reduce brings to each device: a device sends its vector once and
an N-th of the sum, and receives as much. So 8 devices seem to have more than a link's bandwidth, and up to 4 gain
nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fabric:
    """The network between hosts, and the switch within one.

    >>> Fabric(cards=2, hosts_per_leaf=4).leaf(host=5, card=1), Fabric(cards=2, rails=True).leaf(host=5, card=1)
    (1, 1)
    """

    cards: int = 1
    rails: bool = False
    hosts_per_leaf: int = 0
    """0: a leaf has all hosts."""
    oversubscription: float = 1.0
    switch_bytes_per_second: float = 0.0
    """What a device sends to, and receives from, a switch that adds; 0: there is none."""
    switch_latency_ns: int = 0
    """What an all-reduce through it takes beyond that."""

    def leaf(self, host: int, card: int) -> int:
        """The number of the leaf switch that a card is connected to."""
        group = host // self.hosts_per_leaf if self.hosts_per_leaf else 0
        return group * self.cards + card if self.rails else group

    def leaves(self, hosts: int) -> int:
        """How many leaf switches there are."""
        groups = -(-hosts // self.hosts_per_leaf) if self.hosts_per_leaf else 1
        return groups * (self.cards if self.rails else 1)

    def uplink_bytes_per_second(self, hosts: int, host_bytes_per_second: float) -> float:
        """What a leaf's links to other leaves have together, each way."""
        beneath = min(self.hosts_per_leaf or hosts, hosts) * host_bytes_per_second
        return beneath / (self.cards if self.rails else 1) / self.oversubscription

    def ring_share(self, hosts: int) -> float:
        """The share of its cards' bandwidth that a host has in rings, which pass a leaf's links once.

        >>> Fabric(hosts_per_leaf=2, oversubscription=4).ring_share(hosts=8)
        0.5
        """
        spans = bool(self.hosts_per_leaf) and hosts > self.hosts_per_leaf
        return min(1.0, self.hosts_per_leaf / self.oversubscription) if spans else 1.0

    def half_all_reduce_ns(self, sent_bytes: int, ranks: int) -> float:
        """The time of half an all-reduce by the switch, where a ring's half sends so many bytes."""
        through_switch = sent_bytes * (ranks + 1) / (ranks - 1) / 2
        return self.switch_latency_ns / 2 + through_switch / self.switch_bytes_per_second * 1e9
