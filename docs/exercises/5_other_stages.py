"""Exercise 5: ZeRO variants of other libraries. Fill in the functions, then run `zerosim grade 5_other_stages.py`.

You have what exercise 3 had. Here the replica makes no choice for you: `replica.parts(batch)` is one part, the whole
batch, and `replica.gather(unit)` gathers each time that it is called.
"""


def zero2_each_part_step(replica, batch):
    """Stage II, but the gradients of every micro-batch are reduced as soon as they are there.

    `batch.inputs[m]` and `batch.targets[m]` are those of this rank's micro-batch m. `tape.forward` takes a list of
    activations, one for each micro-batch that goes forward at a time: here lists of one. `replica.keep_shard` adds to
    what was kept before. The loss of a part is added to that of earlier ones by `tape.loss`, as its last argument.
    """
    raise NotImplementedError


def zero3_kept_step(replica, batch):
    """Stage III that gathers each unit once: forward keeps the full weights for backward (FSDP's SHARD_GRAD_OP).

    Backward frees them, one after the other. A rank sends 2 P (N−1)/N instead of 3 P (N−1)/N; the price is memory.
    Target: no slower on a virtual machine of 64 devices than a Stage III that gathers each unit once.
    """
    raise NotImplementedError


def fsdp_step(replica, batch):
    """Stage III in which two layers travel as one flat parameter, as FSDP's units do: half as many all-gathers.

    Units are layers. Take them in pairs, (0, 1), (2, 3), …; of an odd number the last is alone. Forward and backward
    gather both at once, by comm.size − 1 messages of this rank's two shards, one behind the other, around the ring
    (`replica.comm` is the communicator; your all_gather from exercise 1, or zerosim.collectives.ring's, takes a list of
    chunks). Then put each layer's shards together again. Gradients are reduced layer by layer, as before.
    """
    raise NotImplementedError
