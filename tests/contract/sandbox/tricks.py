"""Known ways out of a sandbox, each a small program.

A trick prints TRIED before it begins, so that one that never ran proves nothing, and ESCAPED if it worked. Those that
would touch the machine are written so that a success changes nothing: a value is written back as it was, a mount is
made over a folder of its own. `{…}` is filled in by the test: {home}, {outside}, {link}, {port}, {socket}, {victim},
{segment}.
"""

PYTHON = "import ctypes, os, socket, sys\nlibc = ctypes.CDLL(None, use_errno=True)\nprint('TRIED', flush=True)\n"


def shell(line: str) -> str:
    return f"echo TRIED; {line} && echo ESCAPED; true"


def python(code: str) -> str:
    program = (PYTHON + code).replace("'", "'\\''")
    return f"/usr/bin/python3 -c '{program}'; true"


def call(number: int, *arguments: object) -> str:
    """Make a system call by its number on x86_64; anything but a failure is an escape."""
    listed = ", ".join(str(argument) for argument in arguments)
    return python(f"print('ESCAPED' if libc.syscall({number}, {listed}) >= 0 else 'refused')\n")


FILES = {
    "read the machine's passwords": shell("cat /etc/shadow >/dev/null"),
    "read Palyra's token": shell("cat {home}/token"),
    "list Palyra's home": shell("ls {home}/ | grep -q token"),
    "read the token through a link in the workspace": shell("cat {link}/token"),
    "read the token through /proc/self/root": shell("cat /proc/self/root{home}/token"),
    "read the token through /proc/self/cwd": shell("cat /proc/self/cwd/../../../../../../../../..{home}/token"),
    "read the token through the root of process 1": shell("cat /proc/1/root{home}/token"),
    "read the token through any other process": shell("cat /proc/[0-9]*/root{home}/token 2>/dev/null | grep -q ."),
    "read a file outside the workspace": shell("cat {outside}/diary.txt"),
    "write a file outside the workspace": shell("echo x > {outside}/new.txt"),
    "delete a file outside the workspace": shell("rm {outside}/diary.txt"),
    "hard-link a file from outside": shell("ln {outside}/diary.txt stolen.txt"),
    "make a file in the system": shell("touch /usr/palyra-was-here; test -e /usr/palyra-was-here"),
    "make a file in the root": shell("touch /palyra-was-here; test -e /palyra-was-here"),
    "let everybody read a file outside the workspace": python(
        "try: os.chmod('{outside}/diary.txt', 0o666)\nexcept OSError as e: print(e)\n"
        "try: print('ESCAPED' if os.stat('{outside}/diary.txt').st_mode & 0o777 == 0o666 else 'as it was')\n"
        "except OSError as e: print(e)\n"
    ),
    "mark a file outside the workspace": python(
        "try:\n os.setxattr('{outside}/diary.txt', 'user.x', b'x'); print('ESCAPED')\nexcept OSError as e: print(e)\n"
    ),
    "change the owner of a file": shell("touch own && chown 12345 own"),
    "change the owner or group of a file outside": python(
        "before = os.stat('{outside}/diary.txt') if os.path.exists('{outside}') else None\n"
        "for group in {*os.getgroups(), os.getgid(), 65534}:\n"
        "    for change in (os.chown, os.lchown):\n"
        "        try: change('{outside}/diary.txt', -1, group)\n"
        "        except OSError as e: print(e)\n"
        "    try: os.chown('{outside}/diary.txt', os.getuid(), group)\n"
        "    except OSError as e: print(e)\n"
        "after = os.stat('{outside}/diary.txt') if before else None\n"
        "print('as it was' if not before or before.st_ctime_ns == after.st_ctime_ns else 'ESCAPED')\n"
    ),
    "set the times of a file outside": python(
        "before = os.stat('{outside}/diary.txt') if os.path.exists('{outside}') else None\n"
        "for path in ('{outside}/diary.txt', '{outside}'):\n"
        "    for times in (None, (1, 1)):\n"
        "        try: os.utime(path, times)\n"
        "        except OSError as e: print(e)\n"
        "        libc.utime(path.encode(), None); libc.utimes(path.encode(), None)\n"
        "        libc.syscall(261, -100, path.encode(), None)\n"
        "print('as it was' if not before or before.st_ctime_ns == os.stat('{outside}/diary.txt').st_ctime_ns"
        " else 'ESCAPED')\n"
    ),
    "set the times of a program of the system": python(
        "file = os.open('/usr/bin/env', os.O_RDONLY)\nbefore = os.fstat(file).st_ctime_ns\n"
        "try: os.utime(file, ns=(os.fstat(file).st_atime_ns, os.fstat(file).st_mtime_ns))\n"
        "except OSError as e: print(e)\n"
        "print('ESCAPED' if os.fstat(file).st_ctime_ns != before else 'as it was')\n"
    ),
    "watch names outside the workspace": python(
        "watcher = libc.inotify_init1(0)\n"
        "found = [libc.inotify_add_watch(watcher, path, 0xFFF) for path in (b'{outside}', b'{home}/token')]\n"
        "print('ESCAPED' if max(found) > 0 else 'refused')\n"
    ),
    "set the flags of a file of the system": python(
        "import fcntl, struct\nfile = os.open('/usr/bin/env', os.O_RDONLY)\n"
        "try:\n fcntl.ioctl(file, 0x40086602, fcntl.ioctl(file, 0x80086601, bytes(8))); print('ESCAPED')\n"
        "except OSError as e: print(e)\n"
        "libc.syscall.restype = ctypes.c_long\n"
        "print('ESCAPED' if libc.syscall(469, -100, b'/usr/bin/env', bytes(24), 24, 0) == 0 else 'refused')\n"
    ),
    "make others wait for a file of the system": python(
        "import fcntl\n"
        "for path in ('/usr/bin/env', '/etc/os-release'):\n"
        "    for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):\n"
        "        try: fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_SETLEASE, kind); print('ESCAPED')\n"
        "        except OSError as e: print(e)\n"
    ),
    "read an ssh key of the user": shell("ls /root/.ssh /home/*/.ssh"),
    "read kernel memory": shell("head -c1 /proc/kcore >/dev/null || head -c1 /dev/mem >/dev/null"),
    "steer the kernel": python(
        "p = '/proc/sys/kernel/core_pattern'\n"
        "try:\n open(p, 'r+').write(open(p).read()); print('ESCAPED')\nexcept OSError as e: print(e)\n"
    ),
    "look into the kernel's devices": shell("ls /sys/kernel/"),
    "leave a program that runs as its owner": shell("cp /bin/true u && chmod 4755 u && test -u u"),
    "leave a program that runs as its group": shell("cp /bin/true g && chmod g+s g && test -g g"),
    "make a file that runs as its owner at once": python(
        "try: os.close(os.open('made', os.O_CREAT | os.O_WRONLY, 0o4755))\nexcept OSError as e: print(e)\n"
        "try: os.mknod('node', 0o104755)\nexcept OSError as e: print(e)\n"
        "libc.creat(b'created', 0o4755)\n"
        "import struct\nhow = ctypes.create_string_buffer(struct.pack('=3Q', 0o101, 0o4755, 0))\n"
        "libc.syscall(437, -100, b'how', how, 24)\n"
        "found = [name for name in os.listdir() if os.stat(name, follow_symlinks=False).st_mode & 0o6000]\n"
        "print('ESCAPED', found) if found else print('none')\n"
    ),
}

PROCESSES = {
    "read the environment of process 1": python(
        "try: print('ESCAPED' if b'=' in open('/proc/1/environ', 'rb').read() else 'empty')\n"
        "except OSError as e: print(e)\n"
    ),
    "read the environment of the daemon": shell("tr '\\0' '\\n' < /proc/{victim}/environ | grep -q ="),
    "read the command lines of others": shell("grep -aqs keep-this[-]secret /proc/[0-9]*/cmdline"),
    "signal a process outside": shell("kill -0 {victim}"),
    "trace a process outside": python("print('ESCAPED' if libc.ptrace(16, {victim}, 0, 0) == 0 else 'refused')\n"),
    "trace its own parent": python("print('ESCAPED' if libc.ptrace(16, os.getppid(), 0, 0) == 0 else 'refused')\n"),
    "become root": python(
        "try:\n os.setresuid(12345, 12345, 12345); print('ESCAPED')\nexcept OSError as e: print(e)\n"
    ),
    "gain a capability": shell("grep -E '^Cap(Prm|Eff|Bnd|Amb)' /proc/self/status | grep -qv '0000000000000000$'"),
    "gain a capability by a program that has it": shell("su -c 'cat /etc/shadow' </dev/null"),
    "raise a limit": python(
        "import resource\n"
        "try:\n resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40)); print('ESCAPED')\n"
        "except (OSError, ValueError) as e: print(e)\n"
    ),
    "set a limit of a process outside": python(
        "import resource\n"
        "try:\n resource.prlimit({victim}, resource.RLIMIT_CORE, (0, 0)); print('ESCAPED')\n"
        "except (OSError, ValueError) as e: print(e)\n"
    ),
    "slow down a process outside": python(
        "for slow in (lambda: os.setpriority(os.PRIO_PROCESS, {victim}, 19),\n"
        "             lambda: os.sched_setscheduler({victim}, os.SCHED_IDLE, os.sched_param(0)),\n"
        "             lambda: os.sched_setaffinity({victim}, [0])):\n"
        "    try: slow(); print('ESCAPED')\n"
        "    except OSError as e: print(e)\n"
    ),
    "read memory that processes outside share": python(
        "libc.shmat.restype = ctypes.c_void_p\n"
        "print('ESCAPED' if libc.shmat({segment}, None, 0o10000) not in (None, 2**64 - 1) else 'refused')\n"
    ),
    "type into a terminal": python(
        "import fcntl, pty\nmaster = slave = None\n"
        "try:\n master, slave = pty.openpty(); fcntl.ioctl(slave, 0x5412, b'x'); print('ESCAPED')\n"
        "except OSError as e: print(e)\n"
    ),
}

NETWORK = {
    "connect to loopback": python(
        "try:\n socket.create_connection(('127.0.0.1', {port}), 2); print('ESCAPED')\nexcept OSError as e: print(e)\n"
    ),
    "connect to loopback over IPv6": python(
        "try:\n socket.create_connection(('::1', {port}), 2); print('ESCAPED')\nexcept OSError as e: print(e)\n"
    ),
    "send a datagram to the network": python(
        "try:\n s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('192.0.2.1', 53)); print('ESCAPED')\n"
        "except OSError as e: print(e)\n"
    ),
    "connect to an address of the network": python(
        "try:\n socket.create_connection(('192.0.2.1', 80), 2); print('ESCAPED')\n"
        "except OSError as e: print('ESCAPED' if e.errno in (110, 111) or 'timed out' in str(e) else e)\n"
    ),
    "ask for a name": python(
        "try:\n socket.getaddrinfo('example.org', 80); print('ESCAPED')\nexcept OSError as e: print(e)\n"
    ),
    "connect to a socket file of the machine": python(
        "try:\n s = socket.socket(socket.AF_UNIX); s.connect('{socket}'); print('ESCAPED')\n"
        "except OSError as e: print(e)\n"
    ),
    "connect to an abstract socket of the machine": python(
        "try:\n s = socket.socket(socket.AF_UNIX); s.connect('\\0{abstract}'); print('ESCAPED')\n"
        "except OSError as e: print(e)\n"
    ),
    "open a raw socket": python(
        "try:\n socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print('ESCAPED')\nexcept OSError as e: print(e)\n"
    ),
    "open a socket to the hypervisor": python(
        "try:\n socket.socket(40, socket.SOCK_STREAM); print('ESCAPED')\nexcept OSError as e: print(e)\n"
    ),
}

KERNEL = {
    "mount": python(
        "os.makedirs('m', exist_ok=True)\n"
        "print('ESCAPED' if libc.mount(b'none', b'm', b'tmpfs', 0, None) == 0 else 'refused')\n"
    ),
    "mount with the new calls": call(430, 'b"tmpfs"', 0),
    "unmount": python("print('ESCAPED' if libc.umount2(b'{home}', 2) == 0 else 'refused')\n"),
    "make a user namespace": shell("unshare --user --map-root-user true"),
    "make a user namespace by clone": python(
        "pid = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)\n"
        "if pid == 0: os._exit(0)\nprint('ESCAPED' if pid > 0 else 'refused')\n"
    ),
    "make a user namespace by clone3": python(
        "import struct\nargs = ctypes.create_string_buffer(struct.pack('=11Q', 0x10000000, 0, 0, 0, 17, *[0] * 6))\n"
        "pid = libc.syscall(435, args, 88)\nif pid == 0: os._exit(0)\nprint('ESCAPED' if pid > 0 else 'refused')\n"
    ),
    "join another namespace": python(
        "try:\n f = os.open('/proc/self/ns/user', os.O_RDONLY)\nexcept OSError as e: sys.exit()\n"
        "print('ESCAPED' if libc.setns(f, 0) == 0 else 'refused')\n"
    ),
    "change the root": python(
        "os.makedirs('r', exist_ok=True)\nprint('ESCAPED' if libc.chroot(b'r') == 0 else 'refused')\n"
    ),
    "use the kernel's key ring": call(250, 0, -3, 0),
    "add a key": call(248, 'b"user"', 'b"palyra"', 'b"x"', 1, -3),
    "load a program into the kernel": call(321, 0, "ctypes.create_string_buffer(128)", 128),
    "load a kernel module": call(313, 0, 'b""', 0),
    "watch the kernel": call(298, "ctypes.create_string_buffer(128)", 0, -1, -1, 0),
    "use io_uring": call(425, 1, "ctypes.create_string_buffer(120)"),
    "handle page faults": call(323, 0),
    "open a file by its handle": call(304, -100, "ctypes.create_string_buffer(64)", 0),
    "read the kernel's log": call(103, 3, "ctypes.create_string_buffer(1024)", 1024),
    "set the clock": call(227, 0, "ctypes.create_string_buffer(16)"),
    "make a device": python(
        "try:\n os.mknod('dev', 0o020600, os.makedev(1, 1)); print('ESCAPED')\nexcept OSError as e: print(e)\n"
    ),
    "call as 32 bit programs do": python(
        "pid = os.fork()\n"
        "if pid == 0: libc.syscall(0x40000000 + 39); print('ESCAPED', flush=True); os._exit(0)\nos.waitpid(pid, 0)\n"
    ),
}

TRICKS = {**FILES, **PROCESSES, **NETWORK, **KERNEL}
