"""A file without a name, which ends with its process; failures name its folder and how to mend them."""

import tempfile
from functools import cached_property
from typing import BinaryIO, ClassVar

from zerosim.errors import OffloadError


class NamelessFile:
    """A file in `folder`, or in the system's for temporary files, that is made when it is first used."""

    holds: ClassVar[str]
    """The contents, in words of an error."""

    def __init__(self, folder: str = "") -> None:
        self.folder = folder or tempfile.gettempdir()

    @cached_property
    def file(self) -> BinaryIO:
        """The file."""
        try:
            return tempfile.TemporaryFile(dir=self.folder, prefix="zerosim-", buffering=0)
        except OSError as error:
            raise self.refused("make a file", error) from None

    def refused(self, what: str, error: OSError) -> OffloadError:
        """The error that says what could not be done, why, and how to mend it."""
        reason = (error.strerror or str(error)).lower()
        return OffloadError(
            f"cannot {what} for offloaded {self.holds} in {self.folder}: {reason}; name another folder in "
            "parallel.offload_folder"
        )

    def open(self) -> None:
        """See whether a file can be made."""
        self.file.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if "file" in self.__dict__:
            self.file.close()
