"""System calls that a verifier's process is refused in a sandbox, and why: each goes round what stands about it, or
takes memory that no limit counts. All others are allowed: files, limits and the lack of any right hold those.

Numbers are those of x86_64 and aarch64; from 424 on every architecture has the same.
"""

Numbers = tuple[int, int]
NONE = -1  # an architecture lacks the call

# what answers a process that can do without: it is told that the kernel lacks the call, so that it takes another way
ABSENT: dict[str, Numbers] = {
    # its flags are in memory, where no filter reads them; the C library goes back to clone
    "clone3": (435, 435),
    # its mode, too, is in memory
    "openat2": (437, 437),
    # memory that is in no process: no limit and no killer of the kernel's sees who holds it
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}

REFUSED: dict[str, Numbers] = {
    # a file by its number, under whatever covers its folder
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # another tree of files
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "fanotify_init": (300, 262),
    # another's namespaces; new ones, in which it would have every right, are refused by flag: unshare, clone
    "setns": (308, 268),
    # into other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # keys of the session that rlvf was started in
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # programs, counters and messages of the kernel's: where its faults are found
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "syslog": (103, 116),
    # operations that no filter sees
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # memory that stays when a process ends, or that only the kernel holds
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "vmsplice": (278, 75),
}

UNSHARE: Numbers = (272, 97)
CLONE: Numbers = (56, 220)
NAMESPACES = 0x7E020080  # CLONE_NEW*: cgroup, IPC, network, mounts, PIDs, time (0x80), users, names of the machine
CLONE_NAMESPACES = NAMESPACES & ~0x80  # that bit is part of the signal to send

PRCTL: Numbers = (157, 167)
SET_DUMPABLE = 4  # with 0, a process closes what it holds to its supervisor

# A program that is the user's for whoever runs it is refused in every sandbox. At which argument the mode is.
SET_ID = 0o6000
CHANGES_MODE: dict[str, tuple[Numbers, int]] = {
    "chmod": ((90, NONE), 1),
    "fchmod": ((91, 52), 1),
    "fchmodat": ((268, 53), 2),
    "fchmodat2": ((452, 452), 2),
}
MAKES_FILE: dict[str, tuple[Numbers, int]] = {
    "creat": ((85, NONE), 1),
    "mknod": ((133, NONE), 1),
    "mknodat": ((259, 33), 2),
}
OPENS: dict[str, tuple[Numbers, int]] = {  # a mode behind the flags, which counts where these make a file
    "open": ((2, NONE), 2),
    "openat": ((257, 56), 3),
}
MAKING = 0o20000100  # O_CREAT, O_TMPFILE

# What Landlock does not govern, and is refused under it: files and processes outside are the same user's.
# Asked of the supervisor, that makes the change in the verifier's own folder: `rl.verifiers.isolation.attributes`
ASKED: dict[str, Numbers] = {**{name: call for name, (call, _) in CHANGES_MODE.items()}, "utimensat": (280, 88)}
OWNERS: dict[str, Numbers] = {
    "chown": (92, NONE),
    "fchown": (93, 55),
    "lchown": (94, NONE),
    "fchownat": (260, 54),
}
OLD: dict[str, Numbers] = {  # the kernel is said to lack: the C library has utimensat for all
    "utime": (132, NONE),
    "utimes": (235, NONE),
    "futimesat": (261, NONE),
}
UNSUPPORTED: dict[str, Numbers] = {  # as by a file system without them: who copies files goes on
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
IOCTL: Numbers = (16, 29)
SETS_FLAGS = (0x40086602, 0x401C5820, 0x40087602)  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION
# of a process, 0 for the caller's own; those of others are refused, and all of a user's
OF_PROCESS: dict[str, Numbers] = {
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
}
OF_PROCESSES: dict[str, tuple[Numbers, int]] = {  # and the first argument that means a user
    "setpriority": ((141, 140), 2),
    "ioprio_set": ((251, 30), 3),
}
PRLIMIT: Numbers = (302, 261)
