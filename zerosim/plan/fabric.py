"""The network beyond one link per host: network cards, leaf switches, and switches that add.

    card    a network card; rank r of a host uses card r modulo the number of cards
    rail    the cards with one number in all hosts, if each number has leaf switches of its own
    leaf    a switch with the cards of `hosts_per_leaf` hosts, or with those of one rail; its links to all other leaves
            have the bandwidth of its cards, divided by `oversubscription`

With `collectives = "written"` each message follows these links. Pipelined rings pass from host to host once per card,
so each leaf's links carry the traffic of one host, whatever hosts are behind them.

A switch that adds (NVLink SHARP) halves the traffic of an all-reduce: a device sends its vector once plus an N-th of
the sum, and receives as much. So 8 devices seem to have more than a link's bandwidth, and up to 4 devices gain
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
    """0 means that one leaf has all hosts."""
    oversubscription: float = 1.0
    switch_bytes_per_second: float = 0.0
    """Bytes per second between a device and a switch that adds, each way; 0 means that the switch does not add."""
    switch_latency_ns: int = 0
    """The latency of an all-reduce through the switch."""

    def leaf(self, host: int, card: int) -> int:
        """The number of the leaf switch that a card is connected to."""
        group = host // self.hosts_per_leaf if self.hosts_per_leaf else 0
        return group * self.cards + card if self.rails else group

    def leaves(self, hosts: int) -> int:
        """The number of leaf switches."""
        groups = -(-hosts // self.hosts_per_leaf) if self.hosts_per_leaf else 1
        return groups * (self.cards if self.rails else 1)

    def uplink_bytes_per_second(self, hosts: int, host_bytes_per_second: float) -> float:
        """The bandwidth of all links from a leaf to other leaves, each way."""
        beneath = min(self.hosts_per_leaf or hosts, hosts) * host_bytes_per_second
        return beneath / (self.cards if self.rails else 1) / self.oversubscription

    def ring_share(self, hosts: int) -> float:
        """The share of its cards' bandwidth that a host has in rings that pass the links of each leaf once.

        >>> Fabric(hosts_per_leaf=2, oversubscription=4).ring_share(hosts=8)
        0.5
        """
        spans = bool(self.hosts_per_leaf) and hosts > self.hosts_per_leaf
        return min(1.0, self.hosts_per_leaf / self.oversubscription) if spans else 1.0

    def half_all_reduce_ns(self, sent_bytes: int, ranks: int) -> float:
        """The time of half an all-reduce by the switch; half an all-reduce by a ring sends `sent_bytes`."""
        through_switch = sent_bytes * (ranks + 1) / (ranks - 1) / 2
        return self.switch_latency_ns / 2 + through_switch / self.switch_bytes_per_second * 1e9
