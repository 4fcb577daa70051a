"""Numbers of the system calls allowed for confined code, by machine: Python needs them to run.

From Linux's asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64). None of them creates a process,
opens a socket, sends a signal, or changes a file's name, owner or mode.
"""

# fmt: off
ALLOWED = {
    "x86_64": {
        "read": 0, "write": 1, "readv": 19, "writev": 20, "pread64": 17, "pwrite64": 18, "open": 2,
        "openat": 257, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "newfstatat": 262, "statx": 332,
        "poll": 7, "ppoll": 271, "select": 23, "pselect6": 270, "lseek": 8, "mmap": 9, "mprotect": 10,
        "munmap": 11, "mremap": 25, "madvise": 28, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
        "rt_sigreturn": 15, "sigaltstack": 131, "access": 21, "faccessat": 269,
        "faccessat2": 439, "pipe": 22, "pipe2": 293, "sched_yield": 24, "dup": 32, "dup2": 33, "dup3": 292,
        "nanosleep": 35, "clock_nanosleep": 230, "getpid": 39, "gettid": 186, "getppid": 110,
        "getuid": 102, "geteuid": 107, "getgid": 104, "getegid": 108, "uname": 63,
        "getdents": 78, "getdents64": 217, "getcwd": 79, "readlink": 89, "readlinkat": 267,
        "gettimeofday": 96, "time": 201, "clock_gettime": 228, "clock_getres": 229, "times": 100,
        "getrusage": 98, "sysinfo": 99, "futex": 202, "set_robust_list": 273, "rseq": 334,
        "set_tid_address": 218, "arch_prctl": 158, "sched_getaffinity": 204, "exit": 60, "exit_group": 231,
        "getrandom": 318, "epoll_create1": 291, "epoll_ctl": 233, "epoll_wait": 232, "epoll_pwait": 281,
        "eventfd2": 290, "restart_syscall": 219, "setitimer": 38, "getitimer": 36, "alarm": 37,
        "membarrier": 324, "fadvise64": 221,
    },
    "aarch64": {
        "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68, "openat": 56,
        "close": 57, "fstat": 80, "newfstatat": 79, "statx": 291, "ppoll": 73, "pselect6": 72, "lseek": 62,
        "mmap": 222, "mprotect": 226, "munmap": 215, "mremap": 216, "madvise": 233, "brk": 214,
        "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "sigaltstack": 132,
        "faccessat": 48, "faccessat2": 439, "pipe2": 59, "sched_yield": 124, "dup": 23, "dup3": 24,
        "nanosleep": 101, "clock_nanosleep": 115, "getpid": 172, "gettid": 178, "getppid": 173,
        "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "uname": 160,
        "getdents64": 61, "getcwd": 17, "readlinkat": 78, "gettimeofday": 169, "clock_gettime": 113,
        "clock_getres": 114, "times": 153, "getrusage": 165, "sysinfo": 179, "futex": 98,
        "set_robust_list": 99, "rseq": 293, "set_tid_address": 96, "sched_getaffinity": 123, "exit": 93,
        "exit_group": 94, "getrandom": 278, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22,
        "eventfd2": 19, "restart_syscall": 128, "setitimer": 103, "getitimer": 102, "membarrier": 283,
        "fadvise64": 223,
    },
}
# fmt: on

CLONE = {"x86_64": 56, "aarch64": 220}
"""Creates a thread or a process, depending on its first argument."""
CLONE3 = 435
"""Does the same with a structure, which filters cannot read. If it is missing, the C library uses CLONE."""
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Codes of the architecture in a filter."""

THREAD = 0x10000
"""Flag of CLONE for creating a thread."""
BY_COMMAND = {
    "x86_64": {"fcntl": 72, "ioctl": 16},
    "aarch64": {"fcntl": 25, "ioctl": 29},
}
"""Calls whose operation is their second argument. Some of their other operations send signals."""
COMMANDS = {
    "fcntl": (0, 1, 2, 3, 4, 1030),  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC
    "ioctl": (0x5401, 0x5413, 0x5450, 0x5451),  # TCGETS, TIOCGWINSZ, FIONCLEX, FIOCLEX
}
