"""A learner's processes, apart from the marker's and from the other learners'.

Between the marker and a learner's process stands a guard, which is this file, run as a script. All descendants of the
learner's process come back to the guard when their parents end, so it ends them all, also daemons.

    where the marker is root, each process has another user, and each learner another group: it can signal no process
        of others, nor read the files of another learner; its own are read-only
    where root may mount, the learner also sees its own view of the file system: empty folders instead of the
        submissions and the temporary files, and only the interpreter's part of folders that are closed to others
    elsewhere the learner's processes have the marker's rights, and can end the grading on purpose

Source: prctl(2), PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG; mount_namespaces(7).
"""

import ctypes
import itertools
import json
import os
import resource
import secrets
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWIPC = 0x20000, 0x8000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
"""The numbers of these options in Linux's `prctl.h`, `sched.h` and `mount.h`."""
FIRST_USER, USERS = 61_184 + secrets.randbelow(2_000), 2_000
"""Users that systems leave to programs; each grading begins with another."""
MOST_PROCESSES, MOST_FILE_BYTES, SCRATCH = 512, 1 << 28, "size=256m,mode=1777"
"""The processes and threads of a learner, the bytes of a file that it writes, and its temporary files in all."""
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/sys", "/dev")
"""The folders that every program needs, which are never hidden."""
GRACE_SECONDS = 10.0
"""The time for a process to end itself and report its position after its time limit."""
KEPT = ("PATH", "LANG", "LC_", "LD_", "TZ", "PYTHON", "OMP_", "OPENBLAS_", "MKL_", "HYPOTHESIS_")
"""The environment variables that a learner's process has, by their first letters."""


@dataclass(frozen=True)
class Learner:
    """One learner: its folder, its number, and the folders that it may not see."""

    folder: str = ""
    number: int = 0
    hidden: tuple[str, ...] = ()

    @property
    def group(self) -> int | None:
        """The group that may read the learner's files; None for the marker itself."""
        return FIRST_USER + self.number % USERS if self.folder and containment() else None

    @property
    def scratch(self) -> str:
        """The folder in which the learner's processes run."""
        if not self.folder:
            return os.getcwd()
        return tempfile.gettempdir() if containment() == "view" else os.path.join(self.folder, "scratch")

    def copy_of(self, file: str) -> str:
        """The path of the copy of a file."""
        return os.path.join(self.folder, os.path.abspath(file).lstrip(os.sep))

    def closed(self) -> None:
        """Make the folder the learner's alone: its files readable, only `scratch` writable."""
        os.makedirs(self.scratch, exist_ok=True)
        if self.group is None:
            return
        for where, folders, files in os.walk(self.folder):
            for path in (where, *(os.path.join(where, each) for each in [*folders, *files])):
                os.chown(path, 0, self.group)
                os.chmod(path, 0o750 if os.path.isdir(path) else 0o640)
        if containment() == "user":
            os.chmod(self.scratch, 0o770)

    def started(
        self, module: str, arguments: Sequence[str], descriptors: Sequence[int], stdin: int, stderr: int
    ) -> "subprocess.Popen[bytes]":
        """The guard of a process that runs `module` with the guard's process number and `arguments`."""
        before = [sys.executable, "-P", "-m", module]
        environment = {key: value for key, value in os.environ.items() if key.startswith(KEPT)}
        if "PYTHONPATH" in environment:
            environment["PYTHONPATH"] = os.pathsep.join(
                map(os.path.abspath, environment["PYTHONPATH"].split(os.pathsep)))
        environment |= {"HOME": self.scratch, "TMPDIR": self.scratch, "OPENBLAS_NUM_THREADS": "1",
                        "PYTHONUSERBASE": site.getuserbase()}
        return guarded(
            {"before": before, "after": [*arguments], "descriptors": [*descriptors], "group": self.group,
             "user": FIRST_USER + next(STARTED) % USERS, "cwd": self.scratch,
             "level": containment() if self.folder else "",
             **views(self.hidden, (self.folder,) if self.folder else ())},
            stdin=stdin, stdout=subprocess.DEVNULL, stderr=stderr, pass_fds=descriptors,
            env=environment if self.folder else None)


STARTED = itertools.count()
"""The processes started so far; each has another user, so that its end ends no other."""
MARKER = Learner()
"""The marker's own file, which runs with the marker's rights in the marker's folder."""


def guarded(plan: dict[str, Any], **streams: Any) -> "subprocess.Popen[bytes]":
    """A guard, started on a plan."""
    return subprocess.Popen([sys.executable, "-I", "-S", __file__, json.dumps(plan | {"parent": os.getpid()})],
                            start_new_session=True, **streams)


def ended(guard: "subprocess.Popen[bytes]") -> None:
    """End a guard, which ends all processes of its learner first."""
    guard.terminate()
    try:
        guard.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()


@cache
def containment() -> str:
    """The containment that this system allows: a user and a view, a user, or neither (an empty string)."""
    if os.geteuid() != 0:
        return ""
    reads = "import os, sys; os.listdir(sys.argv[2])"
    for level in ("view", "user"):
        plan = {"before": [sys.executable, "-P", "-c", reads], "after": [os.path.dirname(__file__)], "descriptors": [],
                "user": FIRST_USER, "group": FIRST_USER, "cwd": "/", "level": level, **views((), ())}
        with guarded(plan, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as guard:
            if guard.wait() == 0:
                return level
    return ""


def views(hidden: Iterable[str], shown: Iterable[str]) -> dict[str, list[str]]:
    """The folders to hide, outermost first, and those to show again: the interpreter's, zerosim's and `shown`."""
    code = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    needed = [each for each in (sys.prefix, sys.base_prefix, *sys.path, code) if os.path.isdir(each)]
    again = dict.fromkeys([*map(os.path.realpath, (*needed, *shown)), *map(os.path.abspath, needed)])
    away = {os.path.realpath(each) for each in (*hidden, tempfile.gettempdir(), "/var/tmp", "/dev/shm")}
    away |= {each for path in again for each in above(path) if not os.stat(each).st_mode & 1}
    away -= {each for path in SYSTEM for each in above(path)}
    outermost = [each for each in away if os.path.isdir(each) and not away & {*above(each)} - {each}]
    return {"hidden": sorted(outermost), "shown": [each for each in again if {*outermost} & {*above(each)}]}


def above(path: str) -> list[str]:
    """A folder and all those above it.

    >>> above("/a/b")
    ['/a/b', '/a', '/']
    """
    found = [path]
    while found[-1] != os.path.dirname(found[-1]):
        found.append(os.path.dirname(found[-1]))
    return found


def hide(hidden: Sequence[str], shown: Sequence[str]) -> None:
    """Give this process its own view of the file system, and shared memory of its own that ends with it.

    Raises `OSError` where the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
        given = [os.fsencode(each) for each in (source, target, kind)]
        if libc.mount(*given, ctypes.c_ulong(flags), options.encode()):
            raise OSError(ctypes.get_errno(), target)

    if libc.unshare(CLONE_NEWNS | CLONE_NEWIPC):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    opened = [(path, os.open(path, os.O_PATH)) for path in shown]
    for path in hidden:
        mount("none", path, "tmpfs", MS_NOSUID | MS_NODEV, SCRATCH)
    for path, descriptor in opened:
        os.makedirs(path, exist_ok=True)
        mount(f"/proc/self/fd/{descriptor}", path, "", MS_BIND | MS_REC)
        os.close(descriptor)


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Make Linux send this process a signal when `parent` has ended, whatever it is doing."""
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        sys.exit(1)


def prctl(option: int, value: int) -> None:
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def leave(*given: object) -> None:
    """End this process with its clean-up, which a second signal does not interrupt."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def guard(plan: dict[str, Any]) -> int:
    """Run the learner's process, end all its descendants, and return its exit code."""
    signal.signal(signal.SIGTERM, leave)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    end_with(plan["parent"], signal.SIGTERM)
    user = {}
    if plan["level"]:
        user = {"user": plan["user"], "group": plan["group"], "extra_groups": []}
        resource.setrlimit(resource.RLIMIT_NPROC, (MOST_PROCESSES, MOST_PROCESSES))
    if plan["level"] == "view":
        hide(plan["hidden"], plan["shown"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as first_to_end:
        first_to_end.write("1000")
    try:
        learner = subprocess.Popen(
            [*plan["before"], str(os.getpid()), *plan["after"]], pass_fds=plan["descriptors"], cwd=plan["cwd"],
            start_new_session=True, **user)
        for each in plan["descriptors"]:
            os.close(each)
        return learner.wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if plan["level"]:
            end_user(plan["user"])
        end_children()


def end_user(user: int) -> None:
    """End all processes of a user at once, so that none can start another one in between."""
    process = os.fork()
    if not process:
        try:
            os.setresuid(user, user, user)
            if 0 not in os.getresuid():
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(process, 0)


def end_children() -> None:
    """End all descendants: those of an ended child become children of this process."""
    while True:
        for child in children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def children() -> list[int]:
    """The numbers of this process's children."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{process}/stat", "rb") as told:
            if int(told.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(process))
    return found


if __name__ == "__main__":
    ENDED = guard(json.loads(sys.argv[1]))
    if ENDED < 0:
        with suppress(OSError):
            signal.signal(-ENDED, signal.SIG_DFL)
        os.kill(os.getpid(), -ENDED)
    sys.exit(ENDED)
