"""The network between hosts: a line to each, which may be slow, lose packets, or be cut in one direction.

The kernel's own means to spoil a line (netem) is missing on many machines. So each host has a TUN device,
whose packets come to this process: a thread delivers them by their address, late, or not at all.
"""

import fcntl
import heapq
import os
import select
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000
PREFIX = "10.77.0."  # in namespaces of our own: it meets no other network
DEVICE = "line"
PACKET_BYTES = 65536
BURST = 64  # packets of one host before the others have their turn
TURN_SECONDS = 0.02  # at most, until a new host is heard


@dataclass
class Direction:
    """How packets fare one way."""

    delay_seconds: float = 0.0
    loss: float = 0.0
    """The share of packets that never arrive."""
    is_cut: bool = False


@dataclass
class Line:
    """The line of one host. Its fields may be set while packets are under way."""

    device: int
    up: Direction = field(default_factory=Direction)
    """From the host."""
    down: Direction = field(default_factory=Direction)
    """To the host."""

    def cut(self) -> None:
        """Let nothing through any more. No end of a connection hears of it."""
        self.up.is_cut = self.down.is_cut = True

    def heal(self) -> None:
        self.up.is_cut = self.down.is_cut = False

    def spoil(self, delay_seconds: float, loss: float) -> None:
        """Make both directions slow and lossy."""
        for direction in (self.up, self.down):
            direction.delay_seconds, direction.loss = delay_seconds, loss


class Network(threading.Thread):
    """Delivers the packets of all hosts. `close` ends it, and the hosts' devices with it."""

    def __init__(self, seed: int) -> None:
        super().__init__(name="network", daemon=True)
        self._random = Random(seed)
        self._lock = threading.Lock()
        self._lines: dict[int, Line] = {}
        self._under_way: list[tuple[float, int, int, bytes]] = []
        """When it arrives, a number for the order, to which host, the packet."""
        self._numbers = count()
        self._closed = False

    def connect(self, number: int) -> Line:
        """A line to the host with this number. The calling thread must be in the host's network namespace."""
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
        line = Line(device)
        with self._lock:
            self._lines[number] = line
        return line

    def disconnect(self, number: int) -> None:
        """Take a host's line away. What is under way to it is lost."""
        with self._lock:
            os.close(self._lines.pop(number).device)

    def close(self) -> None:
        self._closed = True
        self.join()
        for number in list(self._lines):
            self.disconnect(number)

    def run(self) -> None:
        while not self._closed:
            devices = [line.device for line in self._lines.copy().values()]
            with suppress(OSError):  # a host was disconnected meanwhile
                select.select(devices, [], [], self._patience())
            with self._lock:
                for line in self._lines.values():
                    self._take(line)
                self._deliver()

    def _patience(self) -> float:
        """Seconds until the next packet arrives, or a new host may be there."""
        if not self._under_way:
            return TURN_SECONDS
        return min(TURN_SECONDS, max(0.0, self._under_way[0][0] - time.monotonic()))

    def _take(self, line: Line) -> None:
        """Send what a host has written on its way."""
        with suppress(BlockingIOError):
            for _ in range(BURST):
                packet = os.read(line.device, PACKET_BYTES)
                to = packet[19] if packet[0] >> 4 == 4 else None  # the last byte of an IPv4 destination
                if to not in self._lines:
                    continue
                ways = (line.up, self._lines[to].down)
                if any(way.is_cut or self._random.random() < way.loss for way in ways):
                    continue
                due = time.monotonic() + sum(way.delay_seconds for way in ways)
                heapq.heappush(self._under_way, (due, next(self._numbers), to, packet))

    def _deliver(self) -> None:
        """Hand over what has arrived, unless the line was cut meanwhile."""
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(self._under_way)
            if (line := self._lines.get(to)) is not None and not line.down.is_cut:
                with suppress(OSError):  # the host is too slow, or still boots: its packets are lost
                    os.write(line.device, packet)
