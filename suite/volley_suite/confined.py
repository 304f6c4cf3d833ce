"""Runs one program in this process after giving up what it could do harm with. Started by sandbox.py, never imported.

Standard input: a line with a secret, then the program. Standard output: the secret and "passed", or why it failed.
Arguments: bytes of memory, seconds of CPU time.

Linux' seccomp refuses, whoever runs this: sockets, new processes and programs, signals to others, leaving the process
group, opening a file to write, changing names and attributes of files, limits, mounts. Threads and reading are left.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys

_EPERM, _ENOSYS = 1, 38
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_CLONE_THREAD, _CLONE_NEWUSER, _CLONE_NEWNET = 0x10000, 0x10000000, 0x40000000
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# Numbers on x86-64 and on arm64; None: there is no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "setsid": (112, 157), "setpgid": (109, 154), "prlimit64": (302, 261), "setrlimit": (160, 164),
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "ioprio_set": (251, 30),
    "creat": (85, None), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "mknod": (133, None), "mknodat": (259, 33), "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "memfd_create": (319, 279), "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "mount_setattr": (442, 442), "pivot_root": (155, 41),
    "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "perf_event_open": (298, 241), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "swapon": (167, 224),
    "swapoff": (168, 225), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "sethostname": (170, 161), "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "ioctl": (16, 29),
}
_CLONE, _CLONE3, _OPEN, _OPENAT, _OPENAT2 = (56, 220), (435, 435), (2, None), (257, 56), (437, 437)


class Unconfined(Exception):
    """This machine cannot hold the program."""


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _instruction(0x20, offset)  # a 32-bit word of struct seccomp_data


def _return(action: int) -> bytes:
    return _instruction(0x06, action)


def _errno(number: int) -> int:
    return 0x00050000 | number  # SECCOMP_RET_ERRNO


def _filter(architecture: int, column: int) -> bytes:
    """The program of seccomp: allows what is not refused."""
    low_word = {"first": 16, "second": 24, "third": 32}  # of arguments, little-endian
    jump_equal, jump_set, jump_at_least = 0x15, 0x45, 0x35
    allow = _return(0x7FFF0000)
    code = [_load(4), _instruction(jump_equal, architecture, 1, 0), _return(0x80000000), _load(0)]
    if column == 0:  # the x32 calls of x86-64 have numbers of their own
        code += [_instruction(jump_at_least, 0x40000000, 0, 1), _return(_errno(_EPERM))]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            code += [_instruction(jump_equal, number, 0, 1), _return(_errno(_EPERM))]
    # What is not there is tried in its older form, whose arguments can be seen.
    for absent in (_CLONE3[column], _OPENAT2[column]):
        code += [_instruction(jump_equal, absent, 0, 1), _return(_errno(_ENOSYS))]
    code += [_instruction(jump_equal, _CLONE[column], 0, 4), _load(low_word["first"]),
             _instruction(jump_set, _CLONE_THREAD, 1, 0), _return(_errno(_EPERM)), allow]
    for number, flags in ((_OPEN[column], "second"), (_OPENAT[column], "third")):
        if number is not None:
            code += [_instruction(jump_equal, number, 0, 4), _load(low_word[flags]),
                     _instruction(jump_set, _WRITE_FLAGS, 0, 1), _return(_errno(_EPERM)), allow]
    return b"".join([*code, allow])


def confine(memory_bytes: int, cpu_s: int) -> None:
    """Unconfined if the filter cannot be had; the namespace without a network is a second wall where there is one."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _ARCHITECTURES:
        raise Unconfined(f"code runs only on Linux on x86-64 or arm64, and this is {sys.platform} on {machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    for limit, value in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_CORE, 0),
                         (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_NPROC, 64)):
        resource.setrlimit(limit, (value, value))
    code = _filter(*_ARCHITECTURES[machine])
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    filter_program = Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    zero = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) != 0 or libc.prctl(
        _PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(filter_program), zero, zero
    ):
        raise Unconfined(f"the kernel gives no seccomp filter ({os.strerror(ctypes.get_errno())})")


def main() -> None:
    secret, _, source = sys.stdin.buffer.read().partition(b"\n")
    result = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    def end(outcome: bytes) -> None:
        os.write(result, outcome[:400])
        os._exit(0)  # threads that the program left running do not matter

    try:
        confine(int(sys.argv[1]), int(sys.argv[2]))
    except (Unconfined, OSError, ValueError) as error:
        end(b"unconfined " + str(error).encode())
    try:
        exec(compile(source, "answer", "exec", dont_inherit=True), {"__name__": "__main__"})
    except BaseException as error:  # SystemExit too: a program that leaves early has passed no test
        end(f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    end(secret + b" passed")


main()
