"""A file without a name, which disappears with its process; its errors name the folder and the fix."""

import tempfile
from functools import cached_property
from typing import BinaryIO, ClassVar

from zerosim.errors import OffloadError


class NamelessFile:
    """A file in `folder`, or in the system's folder for temporary files, made at first use."""

    holds: ClassVar[str]
    """The contents, for error messages."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder

    @cached_property
    def folder(self) -> str:
        """The folder of the file; the system's is looked for at first use, since a container may have none."""
        try:
            return self._folder or tempfile.gettempdir()
        except OSError as error:
            self.folder = "the folder for temporary files"
            raise self.refused("find a folder", error) from None

    @cached_property
    def file(self) -> BinaryIO:
        """The file."""
        try:
            return tempfile.TemporaryFile(dir=self.folder, prefix="zerosim-", buffering=0)
        except OSError as error:
            raise self.refused("make a file", error) from None

    def refused(self, what: str, error: OSError) -> OffloadError:
        """The error: the failed action, its reason, and the fix."""
        reason = (error.strerror or str(error)).lower()
        return OffloadError(
            f"cannot {what} for offloaded {self.holds} in {self.folder}: {reason}; name another folder in "
            "parallel.offload_folder"
        )

    def open(self) -> None:
        """Make the file, if that has not happened."""
        self.file.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if "file" in self.__dict__:
            self.file.close()
