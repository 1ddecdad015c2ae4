"""The directions of the mesh over which ranks share a micro-batch, as a model's code reads them."""

from dataclasses import dataclass

from zerosim.autograd.tape_collectives import Direction, joint


@dataclass(frozen=True)
class ModelParallel:
    """The directions of the mesh over which ranks share a micro-batch, for a model's code."""

    tensor: Direction = Direction("tensor")
    context: Direction = Direction("context")
    expert: Direction = Direction("expert")
    sequence: bool = False
    """Whether the tensor ranks have a piece of the sequence each, where they would compute the same."""
    vocabulary: bool = False
    """Whether the tensor ranks have a piece of the vocabulary each, in the embedding and in the outputs."""
    context_by: str = "ring"
    """The attention over pieces of sequences, `ring` or `all_to_all`."""

    @property
    def pieces(self) -> Direction:
        """The ranks that have pieces of sequences or of samples, and use all weights but those of experts on them."""
        return joint(self.context, self.expert)

    @property
    def tokens(self) -> Direction:
        """All ranks that have tokens of their own: with `sequence` the tensor ranks too."""
        return joint(self.tensor, self.context, self.expert) if self.sequence else self.pieces

    @property
    def places(self) -> int:
        """The number of ranks that share a micro-batch."""
        return self.tensor.size * self.context.size * self.expert.size

    def unused(self, *used: str) -> str:
        """The first key of [parallel] that splits a model and is set, but not among `used`; empty if there is none."""
        found = [f"{each.name}_ranks" for each in (self.tensor, self.context, self.expert) if not each.alone]
        found += ["sequence_parallel"] * self.sequence + ["vocabulary_parallel"] * self.vocabulary
        return next((key for key in found if key not in used), "")


IN_ONE_PIECE = ModelParallel()
"""No ranks share a micro-batch."""
