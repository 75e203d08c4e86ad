"""Sockets and tokens: who may be served, and that nobody's are ever stolen or left open."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from crushlite.errors import UsageError
from crushlite.listen import (
    Address,
    Listener,
    TokenFile,
    default_path,
    default_socket,
    directory_lock,
    listen,
    parse_address,
    private_directory,
)
from tests.support.places import ROOT
from tests.support.ports import reserved_port

CROWD = 20
SECONDS = 60.0

CONTENDER = """
import sys
from crushlite.errors import UsageError
from crushlite.listen import Address, listen
print("ready", flush=True)
sys.stdin.readline()
try:
    listener = listen(Address(path=sys.argv[1]))
except UsageError as error:
    print("lost", error, flush=True)
else:
    print("won", flush=True)
    sys.stdin.readline()
    listener.release()
"""


class TemporaryTestCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.path = str(self.root / "d.sock")

    def bound(self, path: str | None = None) -> Listener:
        listener = listen(Address(path=path or self.path))
        self.addCleanup(listener.release)
        return listener

    def answers(self, path: str | None = None) -> bool:
        """Whether somebody accepts connections at the path."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(SECONDS)
            try:
                sock.connect(path or self.path)
            except (ConnectionRefusedError, FileNotFoundError):
                return False
            return True

    def leave_stale_socket(self) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(self.path)
            sock.listen()
        self.assertTrue(os.path.exists(self.path))


class Addresses(unittest.TestCase):
    def test_good_addresses_are_read(self) -> None:
        for url, address in {
            "unix:///run/x.sock": Address(path="/run/x.sock"),
            "unix:///a b/c:d?e#f": Address(path="/a b/c:d?e#f"),
            "tcp://127.0.0.1:0": Address(host="127.0.0.1", port=0),
            "tcp://127.0.0.1:65535": Address(host="127.0.0.1", port=65535),
            "tcp://localhost:8080": Address(host="127.0.0.1", port=8080),
            "tcp://[::1]:8080": Address(host="::1", port=8080),
        }.items():
            with self.subTest(url):
                self.assertEqual(parse_address(url), address)

    def test_an_address_is_written_as_it_is_read(self) -> None:
        for url in ("unix:///run/x.sock", "tcp://127.0.0.1:1", "tcp://[::1]:8080"):
            self.assertEqual(parse_address(url).url, url)

    def test_only_loopback_is_served_and_only_as_spelt_here(self) -> None:
        for host in (
            *("0.0.0.0", "::", "[::]", "*", "192.168.1.10", "10.0.0.1", "172.17.0.1", "8.8.8.8"),
            *("127.1", "127.0.1", "127.0.0.2", "127.1.2.3", "2130706433", "0x7f000001", "0"),
            *("0177.0.0.1", "127.0.0.01", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]", "[::1%lo]"),
            *("LOCALHOST", "Localhost", "localhost.", "localhost.evil", "evil.localhost"),
            *("example.com", "myhost", " 127.0.0.1", "127.0.0.1 ", "user@127.0.0.1", ""),
            *("１２７.0.0.1", "ⅼocalhost", "127。0。0。1", "[fe80::1]", "[::1", "::1]"),  # noqa: RUF001
        ):
            with self.subTest(host), self.assertRaisesRegex(UsageError, "loopback"):
                parse_address(f"tcp://{host}:8080")

    def test_a_tcp_address_needs_a_port(self) -> None:
        for rest in (
            *("127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1", "127.0.0.1:+1", "127.0.0.1:65536"),
            *("127.0.0.1:1.5", "127.0.0.1: 80", "127.0.0.1:80/", "localhost:0x50", "127.0.0.1"),
            *("127.0.0.1:٣", "localhost", "[::1]:80?x", "127.0.0.1:80:"),
        ):
            with self.subTest(rest), self.assertRaises(UsageError):
                parse_address(f"tcp://{rest}")

    def test_other_schemes_and_shapes_are_refused(self) -> None:
        for url in (
            *("", "/run/x.sock", "127.0.0.1:8080", "localhost", "unix:/run/x.sock", "tcp:8080"),
            *("http://127.0.0.1:8080", "https://localhost:1", "npipe://x", "UNIX:///x", "://x"),
            *("unix://", "unix://relative/x.sock", "unix://~/x", "unix:///nul\0x", " unix:///x"),
            *("tcp4://127.0.0.1:1", "TCP://127.0.0.1:1", "fd://3", "abstract://x"),
        ):
            with self.subTest(url), self.assertRaises(UsageError):
                parse_address(url)


class DefaultSocket(unittest.TestCase):
    def test_the_runtime_directory_comes_first_then_the_temporary_one(self) -> None:
        for env, path in (
            ({}, "/tmp/crushlite-7/crushlite.sock"),
            ({"TMPDIR": "/var/tmp"}, "/var/tmp/crushlite-7/crushlite.sock"),
            ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/crushlite/crushlite.sock"),
            (
                {"XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/var/tmp"},
                "/run/user/7/crushlite/crushlite.sock",
            ),
            ({"XDG_RUNTIME_DIR": "", "TMPDIR": ""}, "/tmp/crushlite-7/crushlite.sock"),
            ({"XDG_RUNTIME_DIR": "/run//user/./7/"}, "/run/user/7/crushlite/crushlite.sock"),
        ):
            with self.subTest(env):
                self.assertEqual(default_path(env, uid=7), path)

    def test_a_relative_directory_is_no_place_two_processes_agree_on(self) -> None:
        env = {"XDG_RUNTIME_DIR": "run", "TMPDIR": "./tmp"}
        self.assertEqual(str(default_socket(env, uid=7)), "/tmp/crushlite-7/crushlite.sock")

    def test_a_path_too_long_for_a_socket_moves_below_tmp(self) -> None:
        tail = "/crushlite/crushlite.sock"
        for size, fits in ((103, True), (104, True), (105, False), (300, False)):
            with self.subTest(size):
                env = {"XDG_RUNTIME_DIR": "/" + "x" * (size - len(tail) - 1)}
                path = str(default_socket(env, uid=7))
                wanted = (
                    env["XDG_RUNTIME_DIR"] + tail if fits else "/tmp/crushlite-7/crushlite.sock"
                )
                self.assertEqual(path, wanted)
                self.assertEqual(len(path) == size, fits)

    def test_the_length_is_counted_in_bytes(self) -> None:
        env = {"TMPDIR": "/" + "ü" * 45}
        self.assertEqual(str(default_socket(env, uid=7)), "/tmp/crushlite-7/crushlite.sock")

    def test_two_users_never_share_a_path_below_a_shared_directory(self) -> None:
        self.assertNotEqual(default_socket({}, uid=1), default_socket({}, uid=2))
        self.assertIn(f"crushlite-{os.getuid()}", str(default_socket({})))

    def test_the_name_is_not_that_of_crush(self) -> None:
        self.assertNotRegex(str(default_socket({}, uid=7)), r"crush(-7)?\.sock")


class PrivateDirectory(TemporaryTestCase):
    def test_a_missing_one_is_made_for_its_owner_only(self) -> None:
        path = self.root / "a" / "b"
        before = os.umask(0)
        try:
            private_directory(path)
        finally:
            os.umask(before)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o700)
        private_directory(path)  # and is good the next time

    def test_a_link_is_refused_even_to_a_good_directory(self) -> None:
        (self.root / "real").mkdir(mode=0o700)
        (self.root / "link").symlink_to(self.root / "real")
        (self.root / "dangling").symlink_to(self.root / "nowhere")
        for name in ("link", "dangling"):
            with self.subTest(name), self.assertRaisesRegex(UsageError, "not a directory of ours"):
                private_directory(self.root / name)
        self.assertFalse((self.root / "nowhere").exists())

    def test_a_directory_open_to_others_is_refused_and_left_as_it_is(self) -> None:
        for mode in (0o701, 0o710, 0o750, 0o755, 0o777, 0o1777, 0o704):
            path = self.root / f"{mode:o}"
            path.mkdir()
            path.chmod(mode)
            with self.subTest(oct(mode)), self.assertRaisesRegex(UsageError, "chmod 700"):
                private_directory(path)
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), mode)

    def test_a_directory_of_another_user_is_refused(self) -> None:
        path = self.root / "theirs"
        path.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(path, 12345, -1)
            with self.assertRaisesRegex(UsageError, "not a directory of ours"):
                private_directory(path)
        else:
            # Nobody but root can give a file away: then it is we who are somebody else.
            with (
                mock.patch("os.geteuid", return_value=12345),
                self.assertRaisesRegex(UsageError, "not a directory of ours"),
            ):
                private_directory(path)

    def test_a_file_in_its_place_or_above_it_is_refused(self) -> None:
        (self.root / "file").write_text("precious")
        for path in (self.root / "file", self.root / "file" / "below"):
            with self.subTest(path), self.assertRaises(UsageError):
                private_directory(path)
        self.assertEqual((self.root / "file").read_text(), "precious")


class UnixSockets(TemporaryTestCase):
    def test_the_socket_is_private_from_birth_whatever_the_umask(self) -> None:
        modes: list[int] = []
        real_listen = socket.socket.listen

        def look_then_listen(sock: socket.socket, backlog: int) -> None:
            # Before this call nobody can connect, so this is the widest it ever was to others.
            modes.append(stat.S_IMODE(os.lstat(self.path).st_mode))
            real_listen(sock, backlog)

        for umask in (0, 0o022, 0o077):
            before = os.umask(umask)
            try:
                with mock.patch.object(socket.socket, "listen", look_then_listen):
                    listener = listen(Address(path=self.path))
                self.assertEqual(os.umask(umask), umask)  # and the process keeps its own
            finally:
                os.umask(before)
            self.assertEqual(stat.S_IMODE(os.lstat(self.path).st_mode), 0o600)
            listener.release()
        self.assertEqual(modes, [0o600] * 3)

    def test_a_living_socket_is_never_taken(self) -> None:
        first = self.bound()
        inode = os.lstat(self.path).st_ino
        for _ in range(3):
            with self.assertRaisesRegex(UsageError, "another daemon listens there"):
                listen(Address(path=self.path))
        self.assertEqual(os.lstat(self.path).st_ino, inode)
        self.assertTrue(self.answers())
        first.sock.settimeout(SECONDS)
        first.sock.accept()[0].close()

    def test_a_living_socket_with_a_full_backlog_is_never_taken(self) -> None:
        with contextlib.ExitStack() as stack:
            slow = stack.enter_context(socket.socket(socket.AF_UNIX))
            slow.bind(self.path)
            slow.listen(0)
            full = False
            while not full:
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                full = client.connect_ex(self.path) == errno.EAGAIN
            inode = os.lstat(self.path).st_ino
            with self.assertRaisesRegex(UsageError, "in use and does not answer"):
                listen(Address(path=self.path))
            self.assertEqual(os.lstat(self.path).st_ino, inode)

    def test_a_stale_socket_is_replaced(self) -> None:
        self.leave_stale_socket()
        self.assertFalse(self.answers())
        self.bound()
        self.assertTrue(self.answers())
        self.assertEqual(stat.S_IMODE(os.lstat(self.path).st_mode), 0o600)

    def test_what_is_no_socket_is_refused_and_kept(self) -> None:
        path = Path(self.path)
        target = self.root / "target"
        target.write_text("precious")

        def fifo() -> None:
            os.mkfifo(self.path)

        for make in (
            lambda: path.write_text("precious"),
            lambda: path.mkdir(),
            lambda: path.symlink_to(target),
            lambda: path.symlink_to(self.root / "nowhere"),
            fifo,
        ):
            make()
            before = os.lstat(self.path)
            with self.assertRaisesRegex(UsageError, "not a socket"):
                listen(Address(path=self.path))
            self.assertEqual(os.lstat(self.path), before)
            path.rmdir() if path.is_dir() else path.unlink()
        self.assertEqual(target.read_text(), "precious")

    def test_a_link_to_a_living_socket_is_not_followed(self) -> None:
        self.bound(str(self.root / "other.sock"))
        os.symlink(self.root / "other.sock", self.path)
        with self.assertRaisesRegex(UsageError, "not a socket"):
            listen(Address(path=self.path))
        self.assertTrue(self.answers(str(self.root / "other.sock")))

    def test_a_missing_directory_and_a_path_too_long_are_told(self) -> None:
        with self.assertRaisesRegex(UsageError, "No such file"):
            listen(Address(path=str(self.root / "missing" / "d.sock")))
        name = str(self.root / ("x" * (105 - len(str(self.root)) - 1)))
        self.assertEqual(len(name), 105)
        with self.assertRaisesRegex(UsageError, "longer than 104"):
            listen(Address(path=name))
        self.bound(name[:-1])
        self.assertTrue(self.answers(name[:-1]))

    def test_release_takes_only_its_own_file_away(self) -> None:
        listener = self.bound()
        listener.release()
        self.assertFalse(os.path.exists(self.path))
        listener.release()  # again, and with nothing there: no error

        first = self.bound()
        os.unlink(self.path)
        self.bound()
        first.release()
        self.assertTrue(self.answers())

    def test_a_successor_with_the_same_inode_number_keeps_its_socket(self) -> None:
        # File systems give the number of a removed file to the next one. The number is safe only
        # while the socket is open, so a listener forgets it when it closes.
        first = self.bound()
        number = os.lstat(self.path).st_ino
        first.unlink()
        self.assertFalse(os.path.exists(self.path))
        self.bound()
        real = os.lstat(self.path)
        twin = os.stat_result((real.st_mode, number, *tuple(real)[2:]))
        with mock.patch("os.lstat", return_value=twin):
            first.release()
        self.assertTrue(self.answers())

    def test_of_a_crowd_of_threads_exactly_one_wins(self) -> None:
        for round_ in range(10):
            if round_ % 2:
                self.leave_stale_socket()
            barrier = threading.Barrier(CROWD, timeout=SECONDS)
            won: list[Listener] = []
            lost: list[UsageError] = []

            def contend(
                barrier: threading.Barrier = barrier,
                won: list[Listener] = won,
                lost: list[UsageError] = lost,
            ) -> None:
                barrier.wait()
                try:
                    won.append(listen(Address(path=self.path)))
                except UsageError as error:
                    lost.append(error)

            threads = [threading.Thread(target=contend) for _ in range(CROWD)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SECONDS)
            self.assertEqual((len(won), len(lost)), (1, CROWD - 1))
            self.assertTrue(self.answers())
            won[0].release()
            self.assertFalse(os.path.exists(self.path))

    def test_of_a_crowd_of_processes_exactly_one_wins_and_keeps_serving(self) -> None:
        self.leave_stale_socket()
        with contextlib.ExitStack() as stack:
            crowd = [
                stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-c", CONTENDER, self.path],
                        cwd=ROOT,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
                for _ in range(CROWD)
            ]
            for process in crowd:
                stack.callback(process.kill)
                timer = threading.Timer(SECONDS, process.kill)  # bounds every read below
                stack.callback(timer.cancel)
                timer.start()
            for process in crowd:
                assert process.stdout is not None
                self.assertEqual(process.stdout.readline(), "ready\n")
            for process in crowd:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            words = [p.stdout.readline().split(" ")[0].strip() for p in crowd if p.stdout]
            self.assertEqual(sorted(words), ["lost"] * (CROWD - 1) + ["won"])
            self.assertTrue(self.answers())
            for process in crowd:
                process.communicate("leave\n", timeout=SECONDS)
        self.assertFalse(os.path.exists(self.path))

    def test_a_directory_that_stays_locked_is_told_and_not_waited_for_for_ever(self) -> None:
        with (
            directory_lock(str(self.root)),
            mock.patch("crushlite.listen.LOCK_SECONDS", 0.05),
            self.assertRaisesRegex(UsageError, "stays locked"),
        ):
            listen(Address(path=self.path))
        self.assertFalse(os.path.exists(self.path))


class TCPSockets(TemporaryTestCase):
    def test_a_free_port_is_found_and_told(self) -> None:
        for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
            ports: list[int] = []
            listener = listen(Address(host=host), ports.append)
            self.addCleanup(listener.release)
            self.assertEqual(listener.sock.family, family)
            self.assertGreater(listener.address.port, 0)
            self.assertEqual(ports, [listener.address.port])
            self.assertEqual(listener.sock.getsockname()[0], host)
            socket.create_connection((host, listener.address.port), SECONDS).close()

    def test_nobody_can_connect_before_the_preparation_is_done(self) -> None:
        refused: list[int] = []

        def prepare(port: int) -> None:
            with self.assertRaises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), SECONDS)
            refused.append(port)

        listener = listen(Address(host="127.0.0.1"), prepare)
        self.addCleanup(listener.release)
        self.assertEqual(refused, [listener.address.port])

    def test_a_port_in_use_is_refused_and_its_owner_undisturbed(self) -> None:
        first = listen(Address(host="127.0.0.1"))
        self.addCleanup(first.release)
        prepared: list[int] = []
        with self.assertRaisesRegex(UsageError, "in use; .* choose another address"):
            listen(first.address, prepared.append)
        self.assertEqual(prepared, [])
        socket.create_connection(("127.0.0.1", first.address.port), SECONDS).close()

    def test_a_failed_preparation_leaves_the_port_free(self) -> None:
        address = Address(host="127.0.0.1", port=self.enterContext(reserved_port()))

        def fail(port: int) -> None:
            raise UsageError("no token")

        with self.assertRaisesRegex(UsageError, "no token"):
            listen(address, fail)
        listen(address).release()

    def test_a_port_can_be_taken_again_right_after_a_connection_was_served(self) -> None:
        port = self.enterContext(reserved_port())
        first = listen(Address(host="127.0.0.1", port=port))
        with socket.create_connection(("127.0.0.1", first.address.port), SECONDS):
            accepted = first.sock.accept()[0]
            accepted.close()  # the server closes first: the port is in TIME_WAIT now
        first.release()
        listen(first.address).release()


class Tokens(TemporaryTestCase):
    def test_the_file_is_private_and_holds_the_token(self) -> None:
        before = os.umask(0)
        try:
            token = TokenFile(self.root, 8080)
        finally:
            os.umask(before)
        self.assertEqual(token.path, self.root / "tcp-8080.token")
        self.assertEqual(stat.S_IMODE(token.path.stat().st_mode), 0o600)
        self.assertEqual(token.path.read_text(), token.token + "\n")
        self.assertGreaterEqual(len(token.token), 43)  # 256 bits

    def test_every_start_has_another_token(self) -> None:
        tokens = set()
        for _ in range(5):
            token = TokenFile(self.root, 8080)
            tokens.add(token.token)
            token.remove()
        self.assertEqual(len(tokens), 5)

    def test_the_token_that_a_killed_daemon_left_behind_is_worthless(self) -> None:
        left = TokenFile(self.root, 8080)
        following = TokenFile(self.root, 8080)
        self.assertNotEqual(following.token, left.token)
        self.assertEqual(following.path.read_text(), following.token + "\n")

    def test_the_file_is_always_a_new_one(self) -> None:
        path = self.root / "tcp-8080.token"
        target = self.root / "target"
        target.write_text("precious")
        path.symlink_to(target)
        TokenFile(self.root, 8080)
        self.assertFalse(path.is_symlink())
        self.assertEqual(target.read_text(), "precious")
        path.chmod(0o666)
        with path.open() as reader:
            token = TokenFile(self.root, 8080)
            self.assertNotIn(token.token, reader.read())  # who had the old one open sees nothing
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)

    def test_a_file_that_appears_meanwhile_is_not_written_to(self) -> None:
        path = self.root / "tcp-8080.token"
        path.write_text("theirs")
        with (
            mock.patch.object(Path, "unlink"),
            self.assertRaisesRegex(UsageError, "cannot write"),
        ):
            TokenFile(self.root, 8080)
        self.assertEqual(path.read_text(), "theirs")

    def test_removal_takes_only_its_own_token_away(self) -> None:
        first = TokenFile(self.root, 8080)
        second = TokenFile(self.root, 8080)  # the port was taken over
        first.remove()
        self.assertEqual(second.path.read_text(), second.token + "\n")
        second.remove()
        self.assertFalse(second.path.exists())
        second.remove()

    def test_a_place_that_cannot_be_written_is_told(self) -> None:
        (self.root / "tcp-8080.token").mkdir()
        with self.assertRaisesRegex(UsageError, r"tcp-8080\.token"):
            TokenFile(self.root, 8080)
        with self.assertRaisesRegex(UsageError, r"tcp-1\.token"):
            TokenFile(self.root / "missing", 1)
