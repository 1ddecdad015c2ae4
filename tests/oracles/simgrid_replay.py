"""Replay messages in SimGrid: `/usr/bin/python3 -m tests.oracles.simgrid_replay < CASE > SECONDS`, JSON both ways.

A case has `programs`, of each rank what it sends (`[to, bytes]`) and waits for (`[source]`),
`capacities` of links in bytes a second, `routes`, by "source,to": a latency in nanoseconds and the numbers of links.
What comes back is when the last rank has ended. Needs Debian's python3-simgrid; SimGrid's model is CM02, without
cross-traffic and TCP's gamma.

Messages of a rank leave one after the other, each when the one before has arrived; a send does not wait. So mailboxes
have their receivers before any rank runs: a message to one that has none would wait until it is asked for.

All rates are computed at each event. SimGrid's default renews those that an event touches, and where many messages
share the links of a torus its answers are up to 14% off those.

SimGrid's maxmin/precision stays at its default: of capacities of 10 GB a second 1e-9 is less than a double can tell,
and its solver, which never sees a link as used up then, ends in a segmentation fault (3.32).
"""

import json
import os
import sys
from collections import deque

from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone, Semaphore

UNLIMITED = 1e18


def main():
    case = json.load(sys.stdin)
    engine = Engine([
        "replay", "--cfg=network/model:CM02", "--cfg=network/crosstraffic:0", "--cfg=network/TCP-gamma:0",
        "--cfg=surf/precision:1e-12", "--cfg=network/optim:Full", "--log=root.threshold:error",
    ])
    hosts = platform(case)
    ends = [0.0] * len(hosts)
    for rank, (host, program) in enumerate(zip(hosts, case["programs"], strict=True)):
        queue, posted = deque(), Semaphore(0)
        Actor.create(f"sender {rank}", host, sender, rank, queue, posted)
        actor = Actor.create(f"rank {rank}", host, run, rank, program, queue, posted, ends)
        for source in {each[0] for each in program if len(each) == 1}:
            Mailbox.by_name(f"{source} to {rank}").set_receiver(actor)
    engine.run()
    json.dump(max(ends), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # not by way of the bindings' destructors, of which some fail


def platform(case):
    zone = NetZone.create_full_zone("all")
    links = [zone.create_link(f"link {number}", rate).seal() for number, rate in enumerate(case["capacities"])]
    hosts = [zone.create_host(f"rank {rank}", 1e9).seal() for rank in range(len(case["programs"]))]
    delays = {}
    for pair, (latency_ns, numbers) in case["routes"].items():
        source, to = map(int, pair.split(","))
        if latency_ns not in delays:
            delay = zone.create_link(f"delay {latency_ns}", UNLIMITED)
            delays[latency_ns] = delay.set_latency(latency_ns / 1e9).seal()
        passed = [LinkInRoute(link) for link in [*(links[number] for number in numbers), delays[latency_ns]]]
        zone.add_route(hosts[source].netpoint, hosts[to].netpoint, None, None, passed, False)
    zone.seal()
    return hosts


def sender(rank, queue, posted):
    while True:
        posted.acquire()
        following = queue.popleft()
        if following is None:
            return
        to, size = following
        Mailbox.by_name(f"{rank} to {to}").put_async("message", size).wait()


def run(rank, program, queue, posted, ends):
    for each in program:
        if len(each) == 2:
            queue.append(each)
            posted.release()
        else:
            Mailbox.by_name(f"{each[0]} to {rank}").get()
    ends[rank] = Engine.clock
    queue.append(None)
    posted.release()


if __name__ == "__main__":
    main()
