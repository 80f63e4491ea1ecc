"""The reward of hostile.py: the completion names what it tries."""

REWARD = """
import os, resource, signal, socket, subprocess, sys, time

def reward(problem, completion):
    return globals()[completion](problem)

def tried(function):
    try:
        return 1.0, str(function())[:50]
    except (OSError, ValueError, MemoryError) as error:
        return 0.0, f"{type(error).__name__} {getattr(error, 'errno', '')}"

def raise_limits(problem):
    got = []
    for name in ("AS", "NPROC", "FSIZE", "NOFILE", "CORE"):
        which = getattr(resource, f"RLIMIT_{name}")
        mine = resource.getrlimit(which)[1]
        try:
            resource.setrlimit(which, (mine * 2 + 1, mine * 2 + 1))
            got.append(name)
        except (OSError, ValueError):
            pass
    return float(len(got)), " ".join(got) or "none"

def memory(problem): return tried(lambda: len(bytearray(600 * 2**20)))

def session(problem):
    subprocess.Popen(["sleep", problem.extra["mark"]], start_new_session=True)
    return 1.0

def orphan(problem):
    started = ["sh", "-c", f"setsid sleep {problem.extra['mark']} > /dev/null & echo $!"]
    pid = int(subprocess.run(started, capture_output=True).stdout)
    try:
        while "sleep" not in open(f"/proc/{pid}/cmdline").read():
            time.sleep(0.01)
    except OSError:
        pass  # ended before we saw it
    return 1.0

def bomb(problem):
    for made in range(80):
        try:
            subprocess.Popen(["sleep", problem.extra["mark"]], start_new_session=True)
        except OSError:
            return 0.0, str(made)
    time.sleep(60)  # the kernel's bound was higher: the supervisor's look ends it
    return 1.0, str(made + 1)

def forever(problem):
    import ctypes
    ctypes.CDLL(None).prctl(15, problem.extra["bomb"].encode())  # its name, and that of every copy
    while True:
        try:
            os.fork()
        except OSError:
            pass

def write(problem):
    def one():
        with open("big", "wb") as file:
            for _ in range(200):
                file.write(bytes(2**20))
                file.flush()
    return tried(one)

def fill(problem):
    for number in range(20):
        with open(f"part{number}", "wb") as file:
            for _ in range(50):
                file.write(bytes(2**20))
    time.sleep(60)

def double_fork():
    if (pid := os.fork()) == 0:
        if os.fork() == 0:
            time.sleep(0.005)
        os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.02)

def fill_amid_orphans(problem):
    for number in range(400):
        with open(f"part{number}", "wb") as file:
            file.write(bytes(2**20))
        if number % 10 == 0:
            double_fork()
    while True:
        double_fork()

def orphan_amid_orphans(problem):
    started = ["sh", "-c", f"setsid sleep {problem.extra['mark']} > /dev/null & echo $!"]
    pid = int(subprocess.run(started, capture_output=True).stdout)
    while os.path.exists(f"/proc/{pid}"):
        double_fork()
    return 1.0

def outside(problem): return tried(lambda: open(problem.extra["outside"], "w").write("x"))
def secret(problem): return tried(lambda: open(problem.extra["secret"]).read())
def owned(problem): return tried(lambda: open(problem.extra["owned"]).read())

def handle(problem):
    # the folder of the secret by its number, as ext4 has it, under whatever covers it
    import ctypes, struct
    libc = ctypes.CDLL(None, use_errno=True)
    def one():
        folder, name = os.path.split(problem.extra["secret"])
        above = os.path.dirname(folder)
        (number,) = [entry.inode() for entry in os.scandir(above) if entry.name == os.path.basename(folder)]
        wanted = ctypes.create_string_buffer(struct.pack("IiII", 8, 1, number, 0))
        at = libc.syscall(problem.extra["open_by_handle_at"], os.open(above, os.O_RDONLY), wanted, os.O_RDONLY)
        if at < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return os.read(os.open(name, os.O_RDONLY, dir_fd=at), 50).decode()
    return tried(one)

def rights(problem):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return float(sum(int(lines[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")) > 0), "told"

def calls(problem):
    # with arguments that make none of them do anything, were it allowed
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    allowed = []
    for name, number, flags, refusal in problem.extra["refused"]:
        ctypes.set_errno(0)
        if libc.syscall(number, ctypes.c_long(flags), -1, -1, -1, -1, -1) != -1 or ctypes.get_errno() != refusal:
            allowed.append(f"{name} {ctypes.get_errno()}")
    return float(len(allowed)), " ".join(allowed)[:60] or "none"

def usual(problem):
    import concurrent.futures, ctypes, mmap, multiprocessing, tempfile, threading
    import numpy
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        assert list(threads.map(abs, [-1, -2])) == [1, 2]
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\\n"
    ours, theirs = multiprocessing.Pipe()
    forked = multiprocessing.get_context("fork").Process(target=ours.send, args=[3])
    forked.start()
    assert theirs.recv() == 3
    forked.join()
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        mmap.mmap(file.fileno(), 4096)[:1] = b"x"
    assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 5)() == 5
    return float(numpy.ones((9, 9)).dot(numpy.ones(9)).sum() == 81)

def held(size, hold):
    # until the supervisor ends it
    def one():
        kept = [hold(number, bytes(2**20), size) for number in range(6)]
        time.sleep(15)
        return kept
    return tried(one)

def filled(at, piece, size):
    for _ in range(size):
        os.write(at, piece)
    return at

def deleted(number, piece, size):
    at = os.open(f"{os.environ['TMPDIR']}/held{number}", os.O_CREAT | os.O_RDWR)
    os.unlink(f"{os.environ['TMPDIR']}/held{number}")
    return filled(at, piece, size)

def grown(number, piece, size):
    if (pid := os.fork()) == 0:
        mine = bytearray(size * 2**20)
        time.sleep(15)
        os._exit(0)
    return pid

def hold_memory_files(problem):
    return held(60, lambda number, piece, size: filled(os.memfd_create("m"), piece, size))

def hold_processes(problem): return held(100, grown)
def hold_deleted(problem): return held(60, deleted)

def hold_mapped(problem):
    import mmap
    libc = __import__("ctypes").CDLL(None, use_errno=True)
    libc.mmap.restype = __import__("ctypes").c_void_p
    def one(*given):
        at = deleted(*given)
        libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, at, 0)
        os.close(at)
    return held(60, one)

def hold_shared(problem):
    # memory of no process: all of it but a page is unmapped, and stays as long as that page
    import ctypes, mmap
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    def one(number, piece, size):
        at = libc.mmap(None, size * 2**20, 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
        ctypes.memset(at, 1, size * 2**20)
        libc.munmap(ctypes.c_void_p(at + 4096), ctypes.c_size_t(size * 2**20 - 4096))
    return held(60, one)

def hold_carried(problem):
    kept = []
    def one(*given):
        ours, theirs = socket.socketpair()
        at = deleted(*given)
        socket.send_fds(ours, [b"x"], [at])
        os.close(at)
        kept.append((ours, theirs))
    return held(60, one)

def hold_shm(problem):
    def one(number, piece, size):
        return filled(os.open(f"/dev/shm/h{number}", os.O_CREAT | os.O_RDWR), piece, size)
    return held(60, one)

def within(problem):
    kept = grown(0, b"", 100), deleted(0, bytes(2**20), 60), socket.socketpair()
    time.sleep(2.5)
    return float(len(kept) == 3)

def hide(problem):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    def one():
        if libc.prctl(4, 0, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        time.sleep(0 if problem.extra["root"] else 15)  # to whom nothing is closed
    return tried(one)

def headless(problem):
    # the first thread of a process ends, another goes on
    import ctypes, threading
    libc = ctypes.CDLL(None)
    if os.fork() == 0:
        def go_on():
            libc.prctl(15, problem.extra["headless"].encode())
            time.sleep(60)
        threading.Thread(target=go_on, daemon=True).start()
        time.sleep(0.1)
        libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
    time.sleep(0.5)
    return 1.0

def parent(problem): return tried(lambda: "".join(map(environment, [problem.extra["parent"]])))

def environment(pid):
    return open(f"/proc/{pid}/environ").read()

def everybody(problem):
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += "HOSTILE_SECRET" in environment(pid)
        except OSError:
            pass
    return float(found), "seen"

def memory_of_parent(problem): return tried(lambda: open(f"/proc/{problem.extra['parent']}/mem", "rb").name)

def connect(problem):
    return tried(lambda: socket.create_connection(("127.0.0.1", problem.extra["port"]), timeout=5))

def unix(problem):
    def one():
        with socket.socket(socket.AF_UNIX) as to:
            to.connect(problem.extra["unix"])
    return tried(one)

def unix_datagram_of_a_pair(problem):
    return tried(lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b"x", problem.extra["datagrams"]))

def udp(problem):
    def one():
        with socket.socket(type=socket.SOCK_DGRAM) as to:
            to.sendto(b"x", ("127.0.0.1", problem.extra["udp"]))
    return tried(one)

def pair(problem):
    ours, theirs = socket.socketpair()
    ours.sendall(b"x")
    return theirs.recv(1) == b"x"

def var_tmp(problem): return float(len(os.listdir("/var/tmp"))), "seen"

def kill_parent(problem): return tried(lambda: os.kill(problem.extra["parent"], signal.SIGTERM))

def new_privileges(problem):
    (line,) = [line for line in open("/proc/self/status") if line.startswith("NoNewPrivs")]
    return float(line.split()[1]), "told"

def right(problem): return 1.0
"""
