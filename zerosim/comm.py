"""The communicator's protocol under the name that users' files import; `zerosim.core.comm` defines it.

>>> from zerosim.core.comm import Communicator, left, right
"""

from zerosim.core.comm import Communicator, Exchange, among, left, right

__all__ = ["Communicator", "Exchange", "among", "left", "right"]
