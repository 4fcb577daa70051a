"""Confines the current process, in one call."""

import ctypes
import os
import platform
import resource
import struct
import sys
from itertools import chain
from pathlib import Path

from trinity_db.sandbox import syscalls

MAX_FILE_BYTES = 0  # nothing can be opened for writing anyway
MAX_OPEN_FILES = 64

_PR_SET_NO_NEW_PRIVS, _PR_SET_PDEATHSIG, _PR_SET_SECCOMP = 38, 1, 22
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on all machines
_EXECUTE, _READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 0, 1 << 2, 1 << 3, 1 << 1
# File access rights by Landlock version; version 1 has the first 13.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38

_libc = ctypes.CDLL(None, use_errno=True)


class CannotConfine(Exception):
    """The system lacks a required feature; the message names it."""


def confine(memory_bytes: int, cpu_seconds: int, with_landlock: bool = True) -> str:
    """Confine this process to computing and reading Python's own files; returns a description.

    It cannot create processes, write files, open sockets, or signal processes. The memory limit applies to
    the address space.

    Args:
        with_landlock: False if something else hides the files, such as a mount namespace.

    Raises:
        CannotConfine: if the system lacks a required feature. The process may then be partially confined.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl")
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(limit, (value, value))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    parts = [f"landlock {_restrict_files()}"] if with_landlock else []
    _restrict_calls()
    return ", ".join([*parts, "seccomp", "limits"])


def readable() -> list[str]:
    """Return the paths that Python and its packages need, and harmless devices."""
    roots = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    roots |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    libraries = {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache"}
    devices = {"/dev/null", "/dev/zero", "/dev/urandom"}
    return sorted(path for path in roots | libraries | devices if Path(path).exists())


def _restrict_files() -> int:
    """Restrict file access to `readable` paths; returns the version of Landlock."""
    version: int = _libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        raise CannotConfine(f"Landlock is missing: {os.strerror(ctypes.get_errno())}")
    rights = _RIGHTS[max(known for known in _RIGHTS if known <= version)]
    # Rights for files and TCP (version 4), and a block on outside abstract sockets and signals (version 6).
    attributes = struct.pack("=QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _check(_libc.syscall(_LANDLOCK_CREATE, attributes, size, 0), "landlock_create_ruleset")
    for path in readable():
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = _READ_FILE | _READ_DIR | _EXECUTE if os.path.isdir(path) else _READ_FILE
        if path == "/dev/null":
            allowed |= _WRITE_FILE
        rule = struct.pack("=Qi", allowed, folder)
        _check(_libc.syscall(_LANDLOCK_ADD, rules, 1, rule, 0), "landlock_add_rule")
        os.close(folder)
    _check(_libc.syscall(_LANDLOCK_RESTRICT, rules, 0), "landlock_restrict_self")
    os.close(rules)
    return version


def _restrict_calls() -> None:
    """Return EPERM for every system call that is not allowed."""
    machine = platform.machine()
    if machine not in syscalls.ALLOWED:
        raise CannotConfine(f"the system calls of {machine} are not supported")
    program = b"".join(_filter(machine))
    # sock_fprog: the number of instructions, padding, and their address.
    instructions = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")


def _filter(machine: str) -> list[bytes]:
    """Return the filter program, as Berkeley packet filter instructions on seccomp_data."""
    program = [
        _load(4),  # architecture: calls of another one have other numbers
        *_unless_equal(syscalls.AUDIT_ARCH[machine], [_return(_KILL)]),
        _load(0),  # number of the call
    ]
    for number in syscalls.ALLOWED[machine].values():
        program += _if_equal(number, [_return(_ALLOW)])
    program += _if_equal(syscalls.CLONE3, [_return(_ERROR | _ENOSYS)])
    refuse = _return(_ERROR | _EPERM)
    is_thread = [_load(16), _instruction(0x45, 0, 1, syscalls.THREAD), _return(_ALLOW), refuse]
    program += _if_equal(syscalls.CLONE[machine], is_thread)
    for name, number in syscalls.BY_COMMAND[machine].items():
        allowed = [_if_equal(command, [_return(_ALLOW)]) for command in syscalls.COMMANDS[name]]
        program += _if_equal(number, [_load(24), *chain.from_iterable(allowed), refuse])
    return [*program, refuse]


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    """Load a word by offset: 0 number, 4 architecture, 16 first argument, 24 second (their low halves)."""
    return _instruction(0x20, 0, 0, offset)


def _return(value: int) -> bytes:
    return _instruction(0x06, 0, 0, value)


def _if_equal(value: int, then: list[bytes]) -> list[bytes]:
    return [_instruction(0x15, 0, len(then), value), *then]


def _unless_equal(value: int, then: list[bytes]) -> list[bytes]:
    return [_instruction(0x15, len(then), 0, value), *then]


def _check(result: int, action: str) -> int:
    if result < 0:
        raise CannotConfine(f"{action}: {os.strerror(ctypes.get_errno())}")
    return result
