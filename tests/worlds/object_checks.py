"""What every world does with Python objects."""

from zerosim.worlds.objects import broadcast_object, gather_objects


def check_objects_arrive(comm):
    def told_by(rank):
        return {"rank": rank, "path": [None, "ä" * 100_000, (1.5,)]}

    for root in range(comm.size):
        assert broadcast_object(comm, told_by(comm.rank), root=root) == told_by(root)
        gathered = gather_objects(comm, told_by(comm.rank), root=root)
        everything = [told_by(rank) for rank in range(comm.size)]
        assert gathered == (everything if comm.rank == root else None)
