"""Checkpoints: saved training states, resumed on any number of ranks, by any stage.

- Every rank writes its chunk, in every stage. Each byte is written once, by all ranks at the same time, and the files
  of all stages look alike. If copies of a replicated state differ between ranks, the verdict finds it after every step.
- One mapping serves ranks, directions, stages and units. An element is identified by its parameter and its place in the
  whole of it; cuts and layouts map it to files. A rank needs the memory of its own state, and a block of 1 MiB for each
  file that it reads.
- The first place writes the parameters that all places have, since copies are the same bytes.
- Digests cover blocks, not files. With a digest of a whole file a rank would have to read all of it to trust a tenth.
- The reference trains from the start and does not read the checkpoint. A slot that was saved as zeros would otherwise
  be zeros on both sides.
- A damaged checkpoint is an error that names it; an older one is never used silently.
- Saving among another run's checkpoints is refused, because the last `keep` would be counted over both.
- Nothing is executed: a manifest is JSON, checked for types; arrays are safetensors, read by slices; no pickle.
"""
