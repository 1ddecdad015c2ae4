"""Why a law does not hold: what symbols show of the function, or what the law itself is about."""

import numpy as np

from zerosim.proofs.causes import superfluous
from zerosim.proofs.diagnosis import Diagnosis, command, why
from zerosim.proofs.proof import Proof, prove
from zerosim.proofs.subject import Subject
from zerosim.testing.example import Example

OWN_WORDS = {
    "inputs_stay_unchanged": "it writes into what it is given, which belongs to the caller: begin with x = x.copy()",
    "results_stay_as_they_are": "what it returns shares memory with a buffer that is used again, a default argument or "
                                "a global: return a copy of it (result.copy()), or make the buffer in the function",
}
"""Of laws that are about one thing."""

MORE_OR_LESS = (
    "what comes out is right, and more or less is sent than is needed for it: is a chunk sent twice, a whole vector in "
    "place of a chunk, or an empty message?"
)

COUNTS = ("sends_the_declared_bytes", "sends_the_declared_messages")


NUMBERS_ALONE = "right on symbols, wrong on these numbers: does it convert, round or compare what it adds?"
ONLY_ADDS = "right where reduce is np.add: hand reduce on to comm.exchange and comm.recv, and add with it alone"


def diagnosed(law: str, subject: Subject, example: Example) -> Diagnosis:
    """Why `subject` breaks the law of this name, and the command that shows it."""
    proof = prove(subject, example.size)
    assert proof.case is not None
    about = None if proof.case.wrong_somewhere else about_the_law(law, proof)
    if about is not None:
        return Diagnosis(about, command(proof.case))
    found = why(subject, example.size, example.root)
    return found or Diagnosis(NUMBERS_ALONE if example.reduce is np.add else ONLY_ADDS, command(proof.case))


def about_the_law(law: str, proof: Proof) -> str | None:
    """What a law says that has a single cause, of a function whose sums are right."""
    assert proof.case is not None
    if law in COUNTS:
        return superfluous(proof.case) or MORE_OR_LESS
    if law == "adds_in_the_declared_order" and proof.order:
        return f"each sum is whole, but is added in another order than the declared one: in {proof.order}"
    return OWN_WORDS.get(law)
