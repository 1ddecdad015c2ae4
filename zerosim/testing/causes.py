"""The reason why a law does not hold: the cause that symbols show, or the subject of the law itself."""

import numpy as np

from zerosim.teach.proofs.diagnosis import Diagnosis, command, of_its_order, of_what_is_sent, why
from zerosim.teach.proofs.proof import prove
from zerosim.teach.proofs.subject import Subject
from zerosim.testing.example import Example

OWN_WORDS = {
    "inputs_stay_unchanged": "it changes its argument, which belongs to the caller: begin with x = x.copy()",
    "results_stay_as_they_are": "its result shares memory with a reused buffer, a default argument or a global: "
                                "return a copy (result.copy()), or create the buffer in the function",
}
"""The words for laws about one property."""

COUNTS = ("sends_the_declared_bytes", "sends_the_declared_messages")


NUMBERS_ALONE = "right on symbols, wrong on these numbers: does it convert, round or compare what it adds?"
ONLY_ADDS = "right with reduce=np.add only: pass reduce on to comm.exchange and comm.recv, and add only with it"


def diagnosed(law: str, subject: Subject, example: Example) -> Diagnosis:
    """The reason why `subject` breaks the law of this name, and the command that shows it."""
    proof = prove(subject, example.size)
    assert proof.case is not None
    if not proof.case.wrong_somewhere:
        if law in COUNTS:
            return of_what_is_sent(subject, example.size)
        if law in OWN_WORDS:
            return Diagnosis(OWN_WORDS[law], command(proof.case))
        if law == "adds_in_the_declared_order" and proof.order:
            return of_its_order(subject, example.size)
    found = why(subject, example.size, example.root)
    return found or Diagnosis(NUMBERS_ALONE if example.reduce is np.add else ONLY_ADDS, command(proof.case))
