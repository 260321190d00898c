"""The other projects that benchmarks compare with: whether they are here, and how to get them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from headwise.benchmarks.cases import NotRunError

EXTRA = 'pip install "headwise[bench]"'


@dataclass(frozen=True)
class Peer:
    """A project that can be compared with.

    Attributes:
        package: Its name, as pip and import know it.
        install: What to run to get it.
        note: What a user should know before that, or "".
    """

    package: str
    install: str
    note: str = ""


PEERS = {
    "bertviz": Peer("bertviz", EXTRA),
    # attnread 0.1.2 demands torch 2.14 and transformers 5.19; it runs with others.
    "attnread": Peer(
        "attnread",
        "pip install --no-deps attnread nnsight==0.7.0 && "
        "pip install astor cloudpickle httpx ipython python-socketio toml zstandard",
        "without --no-deps it replaces torch and transformers by the versions it was made with",
    ),
}


def missing(name: str) -> str | None:
    """What to do about a peer that is not installed; None if it is."""
    peer = PEERS[name]
    return None if find_spec(peer.package) else f"{peer.package} is not installed: {peer.install}"


def require(name: str) -> None:
    """Refuse a variant whose peer is not installed.

    Raises:
        NotRunError: It says what to install.
    """
    if (why := missing(name)) is not None:
        raise NotRunError(why)


def versions() -> dict[str, str | None]:
    """The version of each peer, None where it is not installed."""
    return {name: installed(peer.package) for name, peer in PEERS.items()}


def installed(package: str) -> str | None:
    """The version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
