"""A solution to each exercise that this library's own text does not solve, and for each a mistake."""

import numpy as np

from zerosim.collectives import ring
from zerosim.comm import left, right


def reduce_scatter_left(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank + step + 1) % comm.size], to=left(comm),
                      into=chunks[(comm.rank + step + 2) % comm.size], source=right(comm), reduce=reduce)


def reduce_scatter_elsewhere(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step - 2) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 3) % comm.size], source=left(comm), reduce=reduce)


def all_reduce_two_level(comm, chunks, per_host, reduce=np.add):
    hosts = comm.size // per_host
    host, place = divmod(comm.rank, per_host)

    def mine(number):
        number %= per_host
        return chunks[number * hosts : (number + 1) * hosts]

    def of_hosts(number):
        return chunks[place * hosts + number % hosts]

    inside = {"to": host * per_host + (place + 1) % per_host, "source": host * per_host + (place - 1) % per_host}
    between = {"to": (host + 1) % hosts * per_host + place, "source": (host - 1) % hosts * per_host + place}
    for step in range(per_host - 1):
        comm.exchange(mine(place - step - 1), into=mine(place - step - 2), reduce=reduce, **inside)
    for step in range(hosts - 1):
        comm.exchange(of_hosts(host - step - 1), into=of_hosts(host - step - 2), reduce=reduce, **between)
    for step in range(hosts - 1):
        comm.exchange(of_hosts(host - step), into=of_hosts(host - step - 1), **between)
    for step in range(per_host - 1):
        comm.exchange(mine(place - step), into=mine(place - step - 1), **inside)


def zero2_each_part_step(replica, batch):
    tape, weights, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)
    for x, y in zip(batch.inputs, batch.targets, strict=True):
        activations = [x]
        for unit in replica.units:
            activations = tape.forward(unit, weights[unit], activations)
        loss, upstream = tape.loss(replica.loss_name, activations, [y], batch.samples, loss)
        for unit in replica.backward_units:
            upstream, gradient = tape.backward(unit, weights[unit], upstream)
            gradient = replica.reduce_scatter(unit, gradient)
            replica.keep_shard(unit, gradient)
            del gradient
    return updated(replica, loss)


def updated(replica, loss):
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.own(replica.state.weights[unit]))
        replica.publish(unit, replica.state.weights[unit])
    return loss


def zero3_kept_step(replica, batch):
    tape, kept, activations = replica.tape, {}, batch.inputs
    replica.zero_grad(batch)
    for unit in replica.units:
        kept[unit] = replica.gather(unit)
        activations = tape.forward(unit, kept[unit], activations)
    loss, upstream = tape.loss(replica.loss_name, activations, batch.targets, batch.samples, None)
    for unit in replica.backward_units:
        weights = kept.pop(unit)
        upstream, gradient = tape.backward(unit, weights, upstream)
        del weights
        gradient = replica.reduce_scatter(unit, gradient)
        replica.keep_shard(unit, gradient)
        del gradient
    return updated_shards(replica, loss)


def updated_shards(replica, loss):
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, replica.state.weights[unit])
    return loss


def fsdp_step(replica, batch):
    tape, comm, activations = replica.tape, replica.comm, batch.inputs
    replica.zero_grad(batch)

    def gathered(units):
        shards = [replica.state.weights[unit] for unit in units]
        flat = np.empty((comm.size, sum(map(len, shards))), shards[0].dtype)
        flat[comm.rank] = np.concatenate(shards)
        ring.all_gather(comm, list(flat))
        ends = np.cumsum([len(shard) for shard in shards])
        return {unit: flat[:, end - len(shard) : end].reshape(-1)
                for unit, shard, end in zip(units, shards, ends, strict=True)}

    pairs = [replica.units[first : first + 2] for first in range(0, len(replica.units), 2)]
    for pair in pairs:
        weights = gathered(pair)
        for unit in pair:
            activations = tape.forward(unit, weights[unit], activations)
    loss, upstream = tape.loss(replica.loss_name, activations, batch.targets, batch.samples, None)
    for pair in reversed(pairs):
        weights = gathered(pair)
        for unit in reversed(pair):
            upstream, gradient = tape.backward(unit, weights[unit], upstream)
            replica.keep_shard(unit, replica.reduce_scatter(unit, gradient))
    return updated_shards(replica, loss)


def split_pair(all_reduce, x, up, down, upstream):
    inner = np.maximum(x @ up.T, 0.0)
    of_inner = (upstream @ down) * (inner > 0.0)
    return all_reduce(inner @ down.T), all_reduce(of_inner @ up), of_inner.T @ x, upstream.T @ inner


def one_f_one_b_step(pipeline, batch):
    def forward(part):
        pipeline.send_activation(part, pipeline.forward(part, pipeline.receive_activation(part)))

    def backward(part):
        pipeline.send_gradient(part, pipeline.backward(part, pipeline.receive_gradient(part)))

    parts = pipeline.begin(batch)
    warm, steady = parts[: pipeline.after], parts[pipeline.after :]
    for part in warm:
        forward(part)
    for part, earlier in zip(steady, parts, strict=False):
        forward(part)
        backward(earlier)
    for part in parts[len(steady) :]:
        backward(part)
    return pipeline.update()
