"""Exercises graded: what holds of a learner's functions, and the smallest example of what does not.

- An item is worth points of its own. A proof, or a training to the bits of one process, comes first and is worth
  most; nothing else is asked before it holds, because every law would fail for the same reason. After that each item
  is asked by itself.
- Order, bytes and messages are proved on symbols, for 1 to 8 ranks. They were laws, needed Hypothesis, and were less
  exact.
- The points of an exercise stand in one table, and a test holds that its claims add up to them. A mark does not
  depend on what is installed.
- Where the library has the same step, the exercise gets a replica that chooses nothing. The library's Stage II
  reduces every micro-batch only because its replica is told to. The library's code is therefore right and not a
  solution.
- Time targets run on virtual clocks, the same on every machine.
- A function that only raises `NotImplementedError` is not run; grading a folder of skeletons takes a second.
"""
